// Package kubernetes tests the manifests of docs/kubernetes: it builds each overlay as
// `kubectl apply -k` does, decodes the result strictly with the types of Kubernetes, applies
// the Pod Security Standards to it, and passes its commands, variables and files to the
// daemon's own parser.
//
// It is a module of its own, so that the daemon does not depend on Kubernetes.
package kubernetes
