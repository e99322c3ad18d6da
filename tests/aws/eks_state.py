"""Access entries and pod identities of EKS, which moto lacks."""

from __future__ import annotations

from typing import Any

from tests.aws.conftest import Gaps, refusal

Object = dict[str, Any]


class Access:
    """Access entries of one cluster. Creating one twice is a conflict, as in EKS."""

    def __init__(self, gaps: Gaps) -> None:
        self.entries: dict[str, dict[str, Object]] = {}
        self.tags: dict[str, dict[str, str]] = {}
        self.groups: dict[str, list[str]] = {}
        for name in (
            *("describe_access_entry", "create_access_entry", "associate_access_policy"),
            *("list_access_entries", "delete_access_entry", "update_access_entry"),
        ):
            gaps["eks", name] = getattr(self, name)
        gaps["eks", "list_associated_access_policies"] = self.listing

    def _need(self, arn: str) -> dict[str, Object]:
        if arn not in self.entries:
            text = "The specified principalArn could not be found."
            raise refusal("ResourceNotFoundException", text, 404)
        return self.entries[arn]

    def describe_access_entry(self, clusterName: str, principalArn: str) -> Object:
        self._need(principalArn)
        tags, groups = self.tags.get(principalArn, {}), self.groups.get(principalArn, [])
        entry = {"clusterName": clusterName, "principalArn": principalArn, "tags": tags}
        return {"accessEntry": {**entry, "kubernetesGroups": groups}}

    def update_access_entry(self, clusterName: str, principalArn: str, kubernetesGroups: list[str]) -> Object:
        self._need(principalArn)
        self.groups[principalArn] = kubernetesGroups
        return self.describe_access_entry(clusterName, principalArn)

    def list_access_entries(self, clusterName: str, **_: Any) -> Object:
        return {"accessEntries": list(self.entries)}

    def delete_access_entry(self, clusterName: str, principalArn: str) -> Object:
        self._need(principalArn)
        del self.entries[principalArn]
        return {}

    def create_access_entry(
        self,
        clusterName: str,
        principalArn: str,
        type: str,
        tags: dict[str, str],
        kubernetesGroups: list[str] | None = None,
    ) -> Object:
        if principalArn in self.entries:
            raise refusal("ResourceInUseException", "exists", 409)
        self.entries[principalArn] = {}
        self.tags[principalArn], self.groups[principalArn] = tags, kubernetesGroups or []
        return self.describe_access_entry(clusterName, principalArn)

    def associate_access_policy(
        self, clusterName: str, principalArn: str, policyArn: str, accessScope: Object
    ) -> Object:
        self._need(principalArn)[policyArn] = accessScope
        return {"clusterName": clusterName, "principalArn": principalArn}

    def listing(self, clusterName: str, principalArn: str, **_: Any) -> Object:
        rows = [{"policyArn": arn, "accessScope": scope} for arn, scope in self._need(principalArn).items()]
        return {"clusterName": clusterName, "principalArn": principalArn, "associatedAccessPolicies": rows}


class Associations:
    """Pod identity associations, one per service account."""

    def __init__(self, gaps: Gaps) -> None:
        self.rows: dict[str, Object] = {}
        gaps["eks", "delete_pod_identity_association"] = self.delete
        gaps["eks", "list_pod_identity_associations"] = self.listing
        gaps["eks", "create_pod_identity_association"] = self.create
        gaps["eks", "describe_pod_identity_association"] = self.describe
        gaps["eks", "update_pod_identity_association"] = self.update

    def listing(self, clusterName: str, namespace: str = "", serviceAccount: str = "", **_: Any) -> Object:
        keys = ("clusterName", "namespace", "serviceAccount", "associationId")
        wanted = [
            row
            for row in self.rows.values()
            if (row["namespace"], row["serviceAccount"]) == (namespace, serviceAccount) or not namespace
        ]
        return {"associations": [{key: row[key] for key in keys} for row in wanted]}

    def create(self, **given: Any) -> Object:
        number = f"a-{len(self.rows)}"
        self.rows[number] = {**given, "associationId": number}
        return {"association": self.rows[number]}

    def delete(self, clusterName: str, associationId: str) -> Object:
        return {"association": self.rows.pop(associationId)}

    def describe(self, clusterName: str, associationId: str) -> Object:
        if associationId not in self.rows:
            raise refusal("ResourceNotFoundException", "no such association", 404)
        return {"association": self.rows[associationId]}

    def update(self, clusterName: str, associationId: str, roleArn: str) -> Object:
        self.rows[associationId]["roleArn"] = roleArn
        return {"association": self.rows[associationId]}
