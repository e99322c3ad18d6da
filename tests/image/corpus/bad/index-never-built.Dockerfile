# finds: torch-cuda@3
FROM python:3.12-slim-bookworm@sha256:1111111111111111111111111111111111111111111111111111111111111111
RUN pip install --no-cache-dir --index-url https://wheels.example/whl/cu118 torch==2.9.0
USER 1000:1000
ENTRYPOINT ["python", "-m", "train"]
