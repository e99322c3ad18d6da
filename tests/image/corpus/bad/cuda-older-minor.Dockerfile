# warns: torch-cuda@2
FROM nvidia/cuda:12.1.1-cudnn8-devel-ubuntu22.04@sha256:1111111111111111111111111111111111111111111111111111111111111111
RUN python3 -m pip install --no-cache-dir \
    torch==2.8.0
USER 1000:1000
ENTRYPOINT ["python", "-m", "train"]
