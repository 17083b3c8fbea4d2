// Package docker holds the tests of the images and of the sidecar: pods whose ib0 is served by a
// container.
//
// A pod consists of three containers in one network namespace: one that owns the namespace
// and does nothing else, an application, and the sidecar. Containers are Docker's, as root, or
// Podman's, without root ([engine]). Every sidecar has the flags of README's example,
// which a test also runs as it stands.
//
// Each engine runs in its own network, mount and process namespaces ([box]), so it neither sees
// nor changes the machine's own Docker or Podman, and the kernel ends and removes all
// of it with the test, even if the test is killed. Only empty cgroups and a temporary directory remain
// then.
//
// No registry is used. [rootfs] makes the images of the applications from programs of this
// machine, and scripts/image/build the images of ipoibd, which takes a few of Debian's
// packages from their usual mirror.
//
// The independent observers are ping, which sends every few milliseconds ([probe]), iperf3 and
// ss.
package docker
