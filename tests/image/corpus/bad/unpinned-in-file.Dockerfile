# warns: pins@requirements-loose.txt:2
FROM python:3.12-slim-bookworm@sha256:1111111111111111111111111111111111111111111111111111111111111111
COPY requirements-loose.txt /tmp/
RUN pip install --no-cache-dir -r /tmp/requirements-loose.txt
USER 1000:1000
ENTRYPOINT ["python", "-m", "train"]
