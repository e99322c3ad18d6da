# warns: torchvision@3
FROM pytorch/pytorch:2.5.1-cuda12.4-cudnn9-runtime@sha256:1111111111111111111111111111111111111111111111111111111111111111
RUN pip install --no-cache-dir torchvision==0.21.0
USER 1000:1000
ENTRYPOINT ["python", "-m", "train"]
