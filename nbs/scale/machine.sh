#!/bin/bash
# The environment of the full run, and its model and data: in a clone, on a machine with
# NVIDIA GPUs and a driver for CUDA 13.
set -e
python3 -m venv .venv
# shellcheck source=/dev/null
. .venv/bin/activate
pip install -c nbs/scale/versions.txt -e '.[vllm]'
hf download Qwen/Qwen2.5-1.5B-Instruct
hf download --repo-type dataset openai/gsm8k
