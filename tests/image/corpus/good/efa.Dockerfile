FROM nvidia/cuda:13.0.2-devel-ubuntu24.04@sha256:1111111111111111111111111111111111111111111111111111111111111111
RUN pip install --no-cache-dir torch==2.14.0
ARG EFA_INSTALLER_VERSION=1.50.0
RUN curl -fsSO https://efa-installer.amazonaws.com/aws-efa-installer-${EFA_INSTALLER_VERSION}.tar.gz && tar xf aws-efa-installer-${EFA_INSTALLER_VERSION}.tar.gz && cd aws-efa-installer && ./efa_installer.sh -y --skip-kmod --no-verify && rm -rf /var/lib/apt/lists/*
USER 1000:1000
ENTRYPOINT ["python", "-m", "train"]
