# finds: flash-attn@4
FROM python:3.12-slim-bookworm@sha256:1111111111111111111111111111111111111111111111111111111111111111
RUN pip install --no-cache-dir torch==2.8.0
RUN pip install --no-cache-dir https://wheels.example/flash_attn-2.8.1+cu12torch2.6cxx11abiFALSE-cp312-cp312-linux_x86_64.whl
USER 1000:1000
ENTRYPOINT ["python", "-m", "train"]
