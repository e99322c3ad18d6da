# warns: torch-cuda@2
FROM nvidia/cuda:11.7.1-cudnn8-devel-ubuntu22.04@sha256:1111111111111111111111111111111111111111111111111111111111111111
RUN pip install --no-cache-dir torch==2.7.0
USER 1000:1000
ENTRYPOINT ["python", "-m", "train"]
