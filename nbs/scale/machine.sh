#!/bin/bash
# The environment of the full run, and its model and data: in a clone, on a machine with
# NVIDIA GPUs and a driver for CUDA 13.
set -e
# where your home is small, or the nodes that train do not see it; they need the same line:
# export HF_HOME=/a/folder/that/all/nodes/mount
python3 -m venv .venv
# shellcheck source=/dev/null
. .venv/bin/activate
pip install -c nbs/scale/versions.txt -e '.[vllm]'
hf download Qwen/Qwen2.5-1.5B-Instruct
# by `datasets` itself: without a network it does not look where `hf download` puts files
python -c 'import datasets; datasets.load_dataset("openai/gsm8k", "main")'
