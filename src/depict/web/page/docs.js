// The routes of openapi.json, listed.

const make = (tag, text, className = "") => Object.assign(document.createElement(tag), { textContent: text, className });

function route(path, method, { summary, description, parameters = [], requestBody, responses }) {
  const box = make("section", "", "route");
  box.append(make("h3", `${method.toUpperCase()} ${path}`), make("p", description ?? summary));
  const rows = parameters.map(({ name, in: where, schema, description: about = "" }) => {
    const values = schema.enum ?? schema.anyOf?.map(({ type }) => type) ?? [schema.type];
    return `${name} (${where}): ${about || values.join(" | ")}${schema.default ? `; default ${schema.default}` : ""}`;
  });
  if (requestBody?.description) rows.unshift(`body: ${requestBody.description}`);
  const list = document.createElement("ul");
  list.append(...rows.map((row) => make("li", row)));
  const answers = Object.entries(responses).map(([status, { description: text }]) => `${status}: ${text}`);
  box.append(list, make("p", `Answers: ${answers.join("; ")}.`, "small"));
  return box;
}

const { paths } = await (await fetch("openapi.json")).json();
const order = ([path]) => (path === "/segment" || path === "/health" ? 0 : 1);
const routes = Object.entries(paths).sort((a, b) => order(a) - order(b));
document.getElementById("routes").append(
  ...routes.flatMap(([path, methods]) => Object.entries(methods).map(([method, about]) => route(path, method, about))));
for (const code of document.querySelectorAll("pre code")) {
  code.textContent = code.textContent.replaceAll("ADDRESS/", new URL("./", location.href).href);
}
