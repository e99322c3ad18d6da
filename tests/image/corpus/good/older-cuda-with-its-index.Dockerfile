FROM nvidia/cuda:12.1.1-devel-ubuntu22.04@sha256:1111111111111111111111111111111111111111111111111111111111111111
RUN pip install --no-cache-dir --index-url https://wheels.example/whl/cu121 torch==2.5.1
USER 1000:1000
ENTRYPOINT ["python", "-m", "train"]
