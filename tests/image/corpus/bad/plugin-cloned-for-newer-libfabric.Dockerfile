# finds: efa@5
FROM nvidia/cuda:12.8.1-devel-ubuntu22.04@sha256:1111111111111111111111111111111111111111111111111111111111111111
ARG PLUGIN=v1.16.0
RUN curl -fsSO https://efa-installer.amazonaws.com/aws-efa-installer-1.30.0.tar.gz && tar xf aws-efa-installer-1.30.0.tar.gz && cd aws-efa-installer && ./efa_installer.sh -y --skip-kmod && rm -rf /var/lib/apt/lists/*
RUN git clone https://github.com/aws/aws-ofi-nccl.git && cd aws-ofi-nccl && git checkout ${PLUGIN} && ./configure && make install
USER 1000:1000
ENTRYPOINT ["python", "-m", "train"]
