# warns: pins@4
FROM python:3.12-slim-bookworm@sha256:1111111111111111111111111111111111111111111111111111111111111111
# transformers>=4.57 is not a version
RUN pip install --no-cache-dir datasets "transformers>=4.57"
USER 1000:1000
ENTRYPOINT ["python", "-m", "train"]
