"""The routes of the explorer and of its API."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel
from starlette.exceptions import HTTPException

import depict
from depict.data import dataset_class
from depict.web.guard import Guard
from depict.web.jobs import BusyError
from depict.web.runs import Run
from depict.web.segmentation import summary
from depict.web.service import Output, Service, failure
from depict.web.uploads import MAX_PIXELS, MAX_UPLOAD, RefusedError

PAGE = Path(__file__).parent / "page"
THREADS = 8
"""For questions about kept pictures, which do not wait in the queue."""
SWEEP = 5.0
"""Seconds between two looks for results that have expired."""
EXAMPLES = 100
FILES = {
    "labels.png": ("labels", "image/png"),
    "overlay.png": ("overlay", "image/png"),
    "segmentation.json": ("json", "application/json"),
    "probabilities.npz": ("probabilities", "application/zip"),
}
"""The downloads of a kept picture: output and media type."""
MEDIA = dict(FILES.values())

api = APIRouter(tags=["inference"])
page = APIRouter(tags=["explorer page"])


class Health(BaseModel):
    """The state of the server."""

    status: str
    version: str
    runs: list[str]
    running: int
    waiting: int
    kept: int


class ClassShare(BaseModel):
    """A class that occurs in a picture."""

    label: int
    name: str
    color: tuple[int, int, int]
    share: float


class SegmentationSummary(BaseModel):
    """The classes of a picture, largest first."""

    run: str
    height: int
    width: int
    mean_confidence: float
    classes: list[ClassShare]


class Problem(BaseModel):
    """Why a request was refused."""

    detail: str


PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": text}
    for status, text in {
        408: "the picture did not arrive in time",
        413: "too many bytes",
        415: "a form instead of a picture",
        422: "not a picture, damaged, or too many pixels",
        503: "busy: try again after the seconds in Retry-After",
    }.items()
}
PICTURE_BODY = {
    "requestBody": {
        "required": True,
        "description": f"The bytes of a JPEG, PNG, WebP, GIF, BMP or TIFF, at most {MAX_UPLOAD >> 20} MB.",
        "content": {"image/*": {"schema": {"type": "string", "format": "binary"}}},
    }
}


def create_app(runs: Sequence[Run], *, workers: int = 1, root_path: str = "", hosts: Sequence[str] = ()) -> FastAPI:
    """The application that serves these runs under `root_path`, for requests to these host names or any address."""
    service = Service(runs, workers)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
        sweeping = asyncio.create_task(_sweep(service))
        yield
        sweeping.cancel()
        await asyncio.to_thread(service.jobs.close)

    app = FastAPI(
        title="depict",
        version=depict.__version__,
        description="Semantic segmentation with white-box decoders.",
        docs_url=None,  # it would load scripts from elsewhere: the page `docs` is our own
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.service = service
    app.include_router(api)
    app.include_router(page)
    app.mount("/static", StaticFiles(directory=PAGE), name="static")
    app.add_middleware(Guard, hosts=hosts, root_path=root_path)
    app.add_exception_handler(RefusedError, _refused)
    app.add_exception_handler(BusyError, _busy)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _bug)
    return app


@api.post(
    "/segment",
    response_model=SegmentationSummary,
    responses=PROBLEMS
    | {200: {"content": {media: {} for media in MEDIA.values()}, "description": "the requested output"}},
    openapi_extra=PICTURE_BODY,
)
async def segment(
    request: Request,
    output: Annotated[Output, Query(description="json, labels (PNG), overlay (PNG) or probabilities (NPZ)")] = "json",
    run: Annotated[str | None, Query(description="name of the run; by default the first")] = None,
) -> Any:
    """Segment a picture. Send its bytes as the body; nothing is kept."""
    service = _service(request)
    known = {each.name: each for each in service.runs}
    if run is not None and run not in known:
        raise RefusedError(404, f"there is no run of that name; there are: {', '.join(known)}.")
    chosen = service.runs[0] if run is None else known[run]
    result = await service.segment(request, await service.uploads.read(request), chosen, output)
    return result if output == "json" else Response(result, media_type=MEDIA[output])


@api.get("/health")
async def health(request: Request) -> Health:
    """Whether the server works, and how busy it is."""
    service = _service(request)
    return Health(
        status="ok",
        version=depict.__version__,
        runs=[run.name for run in service.runs],
        running=len(service.jobs.running),
        waiting=len(service.jobs.waiting),
        kept=len(service.store),
    )


@page.get("/runs")
async def runs(request: Request) -> Any:
    """The runs with their classes, and the limits of uploads."""
    described = [
        {
            "name": run.name,
            "about": run.about,
            "note": run.note,
            "classes": [
                {"name": name, "color": color}
                for name, color in zip(run.predictor.classes, run.predictor.palette, strict=True)
            ],
        }
        for run in _service(request).runs
    ]
    limits = {"bytes": MAX_UPLOAD, "pixels": MAX_PIXELS}
    examples = EXAMPLES if _knows_scenes(_service(request).runs[0]) else 0
    return {"version": depict.__version__, "runs": described, "limits": limits, "examples": examples}


@page.post("/pictures", status_code=202, responses=PROBLEMS, openapi_extra=PICTURE_BODY)
async def add_picture(request: Request) -> Any:
    """Queue a picture for all runs and keep the results for some minutes."""
    service = _service(request)
    return _status(service, service.add(await service.uploads.read(request)).id)


@page.get("/pictures/{id}")
async def picture_status(request: Request, id: str) -> Any:
    """How far a picture is. A picture that nobody asks about is forgotten."""
    return _status(_service(request), id)


@page.delete("/pictures/{id}", status_code=204)
async def forget_picture(request: Request, id: str) -> None:
    """Forget a picture now."""
    _service(request).forget(id)


@page.get("/pictures/{id}/runs/{index}")
async def result(request: Request, id: str, index: int) -> Any:
    """The classes of a picture, and the facts of every step once they are known."""
    service = _service(request)
    picture = service.picture(id)
    run, found = service.segmentation(picture, index)
    unrolled = picture.unrolled.get(index)
    steps = None if unrolled is None else unrolled.facts
    return {"run": run.name, "view": found.view, "steps": steps} | summary(run.predictor, found)


@page.get("/pictures/{id}/runs/{index}/maps")
async def maps(request: Request, id: str, index: int) -> Response:
    """The most probable classes and their probabilities, as bytes."""
    service = _service(request)
    return _compressed(service.segmentation(service.picture(id), index)[1].maps)


@page.get("/pictures/{id}/runs/{index}/steps")
async def steps(request: Request, id: str, index: int) -> Response:
    """Labels, token colors and movement at every depth, as bytes."""
    return _compressed(_unrolled(request, id, index).maps)


@page.get("/pictures/{id}/runs/{index}/patch")
def patch(request: Request, id: str, index: int, row: int, column: int) -> JSONResponse:
    """What one patch does in every step."""
    unrolled = _unrolled(request, id, index)
    rows, columns = unrolled.view.grid
    if not (0 <= row < rows and 0 <= column < columns):
        raise RefusedError(422, f"there is no patch {row}, {column}: there are {rows} x {columns}.")
    return JSONResponse(unrolled.ask(row, column))


@page.get("/pictures/{id}/runs/{index}/files/{name}")
async def file(request: Request, id: str, index: int, name: str) -> Response:
    """A file to download: labels.png, overlay.png, segmentation.json or probabilities.npz."""
    if name not in FILES:
        raise RefusedError(404, f"there is no such file; there are: {', '.join(FILES)}.")
    output, media = FILES[name]
    service = _service(request)
    content = await service.file(request, service.picture(id), index, output)  # type: ignore[arg-type]
    return JSONResponse(content) if output == "json" else Response(content, media_type=media)


@page.get("/examples/{number}")
def example(number: int) -> Response:
    """A generated scene as PNG."""
    if not 0 <= number < EXAMPLES:
        raise RefusedError(404, f"there are examples 0 to {EXAMPLES - 1}.")
    return Response(_example(number), media_type="image/png", headers={"Cache-Control": "max-age=3600"})


@page.get("/", include_in_schema=False)
@page.get("/guide", include_in_schema=False)
@page.get("/docs", include_in_schema=False)
async def html(request: Request) -> FileResponse:
    """The page, its guide, and the documentation of the API."""
    name = request.scope["route"].path.strip("/") or "index"
    return FileResponse(PAGE / f"{name}.html", headers={"Cache-Control": "no-cache"})


def _service(request: Request) -> Service:
    return request.app.state.service


def _status(service: Service, id: str) -> dict[str, Any]:
    picture = service.picture(id)
    job = picture.job
    problem = failure(job) if job.done.done() else None
    if job.done.cancelled():
        raise BusyError(service.jobs.retry_after())
    state = "failed" if problem else "done" if job.done.done() else "waiting" if job.started is None else "working"
    return {
        "id": id,
        "state": state,
        "position": service.jobs.position(job),
        "stage": job.stage,
        "detail": problem.detail if problem else None,
        "segmented": sorted(picture.segmentations),
        "unrolled": sorted(picture.unrolled),
    }


def _unrolled(request: Request, id: str, index: int) -> Any:
    found = _service(request).picture(id).unrolled.get(index)
    if found is None:
        raise RefusedError(404, "the steps of this picture are not known (yet).")
    return found


def _compressed(content: bytes) -> Response:
    headers = {"Content-Encoding": "gzip"}
    return Response(content, media_type="application/octet-stream", headers=headers)


def _knows_scenes(run: Run) -> bool:
    return set(dataset_class("scenes").classes) <= set(run.predictor.classes)


@functools.lru_cache(8)
def _example(number: int) -> bytes:
    from PIL import Image

    from depict.data.scenes.dataset import Scenes

    pixels = Scenes(None, "val", size=(480, 640)).read(number)[0].permute(1, 2, 0).numpy()
    encoded = io.BytesIO()
    Image.fromarray(pixels).save(encoded, "png", compress_level=1)
    return encoded.getvalue()


async def _sweep(service: Service) -> None:
    while True:
        await asyncio.sleep(SWEEP)
        service.store.sweep()


def _problem(status: int, detail: str, **headers: str) -> JSONResponse:
    return JSONResponse({"detail": detail}, status, headers=headers)


async def _refused(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RefusedError)
    return _problem(error.status, error.detail, **({"Retry-After": "5"} if error.status == 503 else {}))


async def _busy(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, BusyError)
    return _problem(503, str(error), **{"Retry-After": str(error.retry_after)})


async def _invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return _problem(422, f"{first['loc'][-1]}: {first['msg']}.")


async def _http_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return _problem(error.status_code, f"{error.detail}.", **dict(error.headers or {}))


async def _bug(_: Request, error: Exception) -> JSONResponse:
    return _problem(500, "the server failed; the reason is in its log.")
