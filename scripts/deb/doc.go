// Package deb tests the Debian package, which `make deb` builds with the script build from the other
// files of this directory: that its bytes are reproducible, that lintian accepts it, and that its
// unit works on a machine whose process 1 is systemd. `make test-deb` runs the tests, as root.
//
// # The machine
//
// The machine is a container of a Docker daemon that the test starts, with a Debian that
// mmdebstrap makes once and keeps in the cache. In contrast to systemd-nspawn, Docker gives
// systemd the control groups of all controllers, so DevicePolicy= is enforced. Limits above those of
// this machine (LimitMEMLOCK=) are not applied in it, and Debian's Docker does not know CAP_BPF and
// CAP_PERFMON, so there the daemon works without its eBPF programs.
//
// The Docker daemon has its own namespaces of processes and mounts, so that nothing outlives the
// test, and the network namespace of the test (package nstest). A veth joins the container to that
// namespace, where the peer's daemon runs.
package deb
