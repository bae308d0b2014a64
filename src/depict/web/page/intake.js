// Pictures from a drop, the clipboard, a file or the camera; too large ones are scaled down before they are sent.

const LONGEST = 3000;
const $ = (id) => document.getElementById(id);

export function listen({ open, problem }) {
  const take = (files) => {
    const picture = [...files].find((file) => file.type.startsWith("image/"));
    if (picture) open(picture, picture.name || "pasted picture");
    else if (files.length) problem(`“${files[0].name}” is not a picture. Use a JPEG, PNG or WebP file.`);
  };
  $("pick").addEventListener("click", () => $("file").click());
  $("file").addEventListener("change", () => (take($("file").files), ($("file").value = "")));
  document.addEventListener("paste", (event) => {
    if (event.clipboardData.files.length) take(event.clipboardData.files);
  });
  const isFile = (event) => [...event.dataTransfer.types].includes("Files");
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    $("drop-hint").hidden = !isFile(event);
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) $("drop-hint").hidden = true;
  });
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    $("drop-hint").hidden = true;
    if (event.dataTransfer.files.length) take(event.dataTransfer.files);
    else problem("That was not a file. Save the picture first, then drop the file.");
  });
  listenToCamera(open, problem);
}

function listenToCamera(open, problem) {
  const dialog = $("camera-dialog"), video = $("video");
  let stream = null;
  $("camera").hidden = !navigator.mediaDevices?.getUserMedia;
  $("camera").addEventListener("click", async () => {
    try {
      stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    } catch {
      problem("The camera cannot be used: allow it in the browser, or choose a file.");
      return;
    }
    video.srcObject = stream;
    dialog.showModal();
  });
  dialog.addEventListener("close", () => stream?.getTracks().forEach((track) => track.stop()));
  $("camera-close").addEventListener("click", () => dialog.close());
  $("shoot").addEventListener("click", async () => {
    const canvas = new OffscreenCanvas(video.videoWidth, video.videoHeight);
    canvas.getContext("2d").drawImage(video, 0, 0);
    dialog.close();
    open(await canvas.convertToBlob({ type: "image/jpeg", quality: 0.92 }), "camera.jpg");
  });
}

// The picture as it is sent, and a sentence if it had to be changed.
export async function prepare(blob, limits) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(blob);
  } catch {
    throw new Error("This browser cannot read the picture. Use a JPEG, PNG or WebP file.");
  }
  const { width, height } = bitmap;
  if (blob.size <= limits.bytes && width * height <= limits.pixels) {
    bitmap.close();
    return { blob, note: "" };
  }
  const factor = Math.min(1, LONGEST / Math.max(width, height), Math.sqrt(limits.pixels / (width * height)));
  const [w, h] = [width, height].map((side) => Math.max(1, Math.floor(factor * side)));
  const canvas = new OffscreenCanvas(w, h);
  canvas.getContext("2d").drawImage(bitmap, 0, 0, w, h);
  bitmap.close();
  const note = `The picture was scaled down from ${width} × ${height} to ${w} × ${h} pixels.`;
  return { blob: await canvas.convertToBlob({ type: "image/jpeg", quality: 0.92 }), note };
}
