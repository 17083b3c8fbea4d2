package ethtool_test

import (
	"errors"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"ipoibd/link/ethtool"
	"ipoibd/link/linktest/nstest"
)

func newSocket(t *testing.T, family int) (fd int) {
	t.Helper()
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// shown matches a feature in the output of ethtool.
var shown = regexp.MustCompile(`(?m)^\t?([a-z0-9_-]+): (on|off)`)

// traditional are ethtool's own names of features, some for several of the kernel's.
var traditional = []string{
	"rx-checksumming", "tx-checksumming", "scatter-gather", "tcp-segmentation-offload", "generic-segmentation-offload", "generic-receive-offload",
	"large-receive-offload", "rx-vlan-offload", "tx-vlan-offload", "ntuple-filters", "receive-hashing",
}

// Active reports the same features as ethtool, by a socket of any family, and from another network
// namespace. The bits of the features that the test changes are in different blocks.
func TestActiveFeatures(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	ns, _ := nstest.Pair(t, 1500)
	var sockets []int
	ns.Do(func() { sockets = []int{newSocket(t, unix.AF_INET6), newSocket(t, unix.AF_NETLINK)} })
	for _, feature := range []string{"tx-tcp-segmentation", "rx-gro-list"} {
		for _, want := range []string{"on", "off", "on"} {
			ns.Run("ethtool", "-K", nstest.Dev, feature, want)
			features := shown.FindAllStringSubmatch(ns.Run("ethtool", "-k", nstest.Dev), -1)
			if len(features) < 30 {
				t.Fatalf("ethtool shows only the features %q", features)
			}
			for _, fd := range sockets {
				active, err := ethtool.Active(fd, nstest.Dev)
				if err != nil {
					t.Fatal(err)
				}
				if slices.Contains(active, feature) != (want == "on") {
					t.Errorf("%s is %s, but the active features are %q", feature, want, active)
				}
				for _, f := range features {
					if !slices.Contains(traditional, f[1]) && slices.Contains(active, f[1]) != (f[2] == "on") {
						t.Errorf("ethtool shows %s, but the active features are %q", f[0], active)
					}
				}
			}
		}
	}
}

// Statistics are those that ethtool shows. The index of the other end of a veth pair is one of them.
func TestStatistics(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	ns, _ := nstest.Pair(t, 1500)
	var fd int
	ns.Do(func() { fd = newSocket(t, unix.AF_INET) })
	shown := regexp.MustCompile(`peer_ifindex: (\d+)`).FindStringSubmatch(ns.Run("ethtool", "-S", nstest.Dev))
	s, err := ethtool.Choose(fd, nstest.Dev, func(name string) bool { return name == "peer_ifindex" })
	if err != nil || !s.Any() || shown == nil {
		t.Fatalf("%+v, %v; ethtool shows %q", s, err, shown)
	}
	if sum, err := s.Sum(fd); err != nil || strconv.FormatUint(sum, 10) != shown[1] {
		t.Errorf("%d, %v; ethtool shows %q", sum, err, shown)
	}
	ns.Run("ethtool", "-L", nstest.Dev, "rx", "2") // adds statistics of a queue
	if sum, err := s.Sum(fd); err != nil || strconv.FormatUint(sum, 10) != shown[1] {
		t.Errorf("after a change of the queues: %d, %v; ethtool has shown %q", sum, err, shown)
	}
	if s, err := ethtool.Choose(fd, nstest.Dev, func(string) bool { return false }); err != nil || s.Any() {
		t.Errorf("%+v, %v: chosen, although no name matches", s, err)
	}
	if s, err := ethtool.Choose(fd, "lo", func(string) bool { return true }); s.Any() {
		t.Errorf("%+v, %v: lo has none", s, err)
	}
}

func TestNoNetdev(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	if active, err := ethtool.Active(newSocket(t, unix.AF_INET), "none"); !errors.Is(err, unix.ENODEV) {
		t.Errorf("Active of a missing netdev = %q, %v", active, err)
	}
}
