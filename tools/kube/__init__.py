"""kubectl, manifests, and the rules of Kubernetes that they need."""

from tools.kube.kubectl import Kubectl
from tools.kube.manifests import Manifests, Object, name_of

__all__ = ["Kubectl", "Manifests", "Object", "name_of"]
