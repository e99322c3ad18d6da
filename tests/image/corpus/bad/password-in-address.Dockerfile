# finds: secrets@3
FROM python:3.12-slim-bookworm@sha256:1111111111111111111111111111111111111111111111111111111111111111
RUN pip install --no-cache-dir --index-url https://me:hunter2hunter2@index.example/simple numpy==2.3.0
USER 1000:1000
ENTRYPOINT ["python", "-m", "train"]
