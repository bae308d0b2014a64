"""Pages of the site that are made from other files: home, contributing, changelog, cards, notebooks, Python reference.

README.md, CONTRIBUTING.md, CHANGELOG.md and the cards of shipped models are read where they are. Notebooks become
Markdown, so that their links are checked and their code looks like that of the guides. Links are changed to fit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from nbconvert import MarkdownExporter

DOCS = Path(__file__).parent
COPIED = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "src/depict/models/depict-ade20k/README.md": "depict-ade20k.md",
}
REFERENCE = {
    "models": ("Models and predictions", "model prediction runs"),
    "operators": ("Operators and coding rates", "operators coding_rate"),
    "decoders": (
        "Decoders",
        "decoders decoders.base decoders.depict decoders.cbt decoders.segmenter decoders.ablation decoders.heads "
        "decoders.depict_mask decoders.mask_classification decoders.maskformer",
    ),
    "encoders": ("Encoders and neck", "encoders encoders.base neck"),
    "data": ("Data sets", "data data.dataset data.pairs"),
    "config": ("Settings", "config.schema"),
    "training": ("Training and evaluation", "training.loop evaluation"),
    "analysis": ("Analyses", "analysis.base analysis.runner"),
}
"""Pages of the reference: title and modules."""
PICTURE = re.compile(r'<picture>.*?srcset="(.*?)".*?alt="(.*?)" src="(.*?)".*?</picture>', re.DOTALL)


def on_config(config: MkDocsConfig) -> None:
    """Put the pages of the reference into the navigation."""
    pages = [{title: f"reference/{name}.md"} for name, (title, _) in REFERENCE.items()]
    for section in config.nav or []:
        if "Python" in section:
            section["Python"] = pages


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages, and the pictures of the notebooks."""
    for path, content in generated():
        files.append(File.generated(config, path, content=content))


def generated() -> Iterator[tuple[str, str | bytes]]:
    """Path below this folder and content of every file."""
    for source, page in COPIED.items():
        front = "---\nhide: [navigation]\n---\n" if page == "index.md" else ""
        yield page, front + adapt((DOCS.parent / source).read_text(encoding="utf-8"))
    for name, (title, modules) in REFERENCE.items():
        yield f"reference/{name}.md", "\n\n".join([f"# {title}", *(f"::: depict.{m}" for m in modules.split())])
    for path in sorted((DOCS / "notebooks").glob("*.ipynb")):
        names = {"output_files_dir": f"{path.stem}_files", "unique_key": path.stem}
        text, made = MarkdownExporter().from_filename(str(path), names)
        yield f"notebooks/{path.stem}.md", adapt(text) + f"\n[Download this notebook]({path.name})\n"
        for name, picture in made["outputs"].items():
            yield f"notebooks/{name}", picture


def adapt(text: str) -> str:
    """A page with links that fit the site."""
    for source, page in COPIED.items():
        text = text.replace(f"]({source})", f"]({page})")
    # The theme shows one of two pictures by its own switch between light and dark.
    text = PICTURE.sub(r"![\2](\1#only-dark)\n![\2](\3#only-light)", text)
    text = re.sub(r"(\]\([\w/-]+)\.ipynb\)", r"\1.md)", text)
    return text.replace("](docs/", "](")


def on_page_markdown(markdown: str, **_: object) -> str:
    """Links to copied pages are changed. A folder of the repository is a link on a forge, but no page of the site."""
    for source, page in COPIED.items():
        markdown = markdown.replace(f"](../{source})", f"]({page})")
    return re.sub(r"\[([^\]]+)\]\([\w/]+/\)", r"`\1`", markdown)


class PlainTypes(griffe.Extension):
    """Shows `Annotated[X, ...]` as X: the rest is for the help of the command line."""

    def on_attribute(self, *, attr: griffe.Attribute, **_: object) -> None:
        """Replace the type of one attribute."""
        shown = attr.annotation
        if isinstance(shown, griffe.ExprSubscript) and shown.canonical_name == "Annotated":
            attr.annotation = shown.slice.elements[0]
