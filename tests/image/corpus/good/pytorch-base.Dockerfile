FROM pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime@sha256:1111111111111111111111111111111111111111111111111111111111111111
ENV PIP_NO_CACHE_DIR=1
RUN pip install torchvision==0.23.0 torchaudio==2.8.0 transformers==4.57.0
COPY train.py /app/
WORKDIR /app
USER 1000:1000
ENTRYPOINT ["python", "-m", "train"]
