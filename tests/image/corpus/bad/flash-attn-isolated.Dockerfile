# finds: flash-attn@4
FROM nvidia/cuda:12.8.1-cudnn-devel-ubuntu24.04@sha256:1111111111111111111111111111111111111111111111111111111111111111
RUN pip install --no-cache-dir torch==2.8.0
RUN pip install --no-cache-dir flash-attn==2.8.3
USER 1000:1000
ENTRYPOINT ["python", "-m", "train"]
