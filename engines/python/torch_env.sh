#!/bin/sh
# Makes the virtual environment that the Python tests run in, once: torch_env.sh FOLDER
#
# It lies outside of the checkout, since PyTorch brings its CUDA libraries along (about 6 GB unpacked, 3 GB to download); every checkout
# of this user shares it. Nothing is done where the packages of torch_env.txt are there already. PYTHON: the Python that it is made with.
set -eu

folder=$1
list=$(dirname "$0")/torch_env.txt
needed_gb=12 # the wheels and what they unpack to, at once

if [ -f "$folder/made-of" ] && cmp -s "$list" "$folder/made-of"; then exit 0; fi

mkdir -p "$folder"
free_gb=$(($(df -Pk "$folder" | awk 'NR == 2 { print $4 }') / 1048576))
if [ "$free_gb" -lt "$needed_gb" ]; then
  echo "torch-env: $folder: got $free_gb GB of free disk, wanted $needed_gb; FEWHEAD_TORCH_ENV names another folder" >&2
  exit 1
fi
echo "torch-env: making $folder; PyTorch is a download of about 3 GB"
"${PYTHON:-python3}" -m venv "$folder"
nice "$folder/bin/python" -m pip install --quiet --no-cache-dir --disable-pip-version-check --requirement "$list"
cp "$list" "$folder/made-of"
