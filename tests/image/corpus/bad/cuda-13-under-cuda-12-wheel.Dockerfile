# warns: torch-cuda@2
FROM nvidia/cuda:13.0.2-devel-ubuntu24.04@sha256:1111111111111111111111111111111111111111111111111111111111111111
RUN pip install --no-cache-dir torch==2.9.1
USER 1000:1000
ENTRYPOINT ["python", "-m", "train"]
