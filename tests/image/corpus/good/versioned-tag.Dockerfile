FROM nvidia/cuda:12.8.1-cudnn-devel-ubuntu24.04
RUN pip install --no-cache-dir torch==2.8.0 && pip install --no-cache-dir --no-build-isolation flash-attn==2.8.3
USER 1000:1000
ENTRYPOINT ["python", "-m", "train"]
