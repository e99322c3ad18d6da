# finds: torchvision@3
FROM python:3.12-slim-bookworm@sha256:1111111111111111111111111111111111111111111111111111111111111111
RUN pip install --no-cache-dir torch==2.15.0 torchvision==0.29.0
USER 1000:1000
ENTRYPOINT ["python", "-m", "train"]
