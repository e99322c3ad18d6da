# finds: flash-attn@3
FROM pytorch/pytorch:2.6.0-cuda12.4-cudnn9-runtime@sha256:1111111111111111111111111111111111111111111111111111111111111111
RUN pip install --no-cache-dir --no-build-isolation flash-attn==2.7.4
USER 1000:1000
ENTRYPOINT ["python", "-m", "train"]
