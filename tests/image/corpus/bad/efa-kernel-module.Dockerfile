# finds: efa@3
FROM nvidia/cuda:12.8.1-devel-ubuntu24.04@sha256:1111111111111111111111111111111111111111111111111111111111111111
RUN curl -fsSO https://efa-installer.amazonaws.com/aws-efa-installer-1.50.0.tar.gz && tar xf aws-efa-installer-1.50.0.tar.gz && cd aws-efa-installer && ./efa_installer.sh -y
USER 1000:1000
ENTRYPOINT ["python", "-m", "train"]
