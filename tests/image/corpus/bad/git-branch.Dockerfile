# warns: pins@3
FROM python:3.12-slim-bookworm@sha256:1111111111111111111111111111111111111111111111111111111111111111
RUN pip install --no-cache-dir git+https://github.com/huggingface/transformers@main
USER 1000:1000
ENTRYPOINT ["python", "-m", "train"]
