package verbstest

import (
	"net/netip"
	"os"
	"path"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
	"ipoibd/hca/hcatest"
	"ipoibd/hca/verbs"
)

// The environment variables that name the two devices.
const (
	EnvA = "TEST_IPOIBD_VERBS_A"
	EnvB = "TEST_IPOIBD_VERBS_B"
)

// Underlay is an IP version, with a multicast group.
type Underlay struct {
	Name  string
	v4    bool
	group hca.GID
}

func gid(s string) hca.GID { return hca.GIDFromAddr(netip.MustParseAddr(s)) }

// The underlays of RoCE v2.
var (
	IPv6 = Underlay{"IPv6", false, gid("ff12:401b:ffff::ffff:ffff")}
	IPv4 = Underlay{"IPv4", true, gid("239.1.2.3")}
)

// Harness returns the harness for the conformance suite on the devices, each wrapped by
// wrap.
func (u Underlay) Harness(t testing.TB, wrap func(hca.Device) hca.Device) hcatest.Harness {
	t.Helper()
	open := func(t *testing.T, env string) hcatest.Host {
		t.Helper()
		h := u.Host(t, env)
		h.Dev = wrap(h.Dev)
		return h
	}
	return hcatest.Harness{
		Open:     func(t *testing.T) (a, b hcatest.Host) { return open(t, EnvA), open(t, EnvB) },
		Features: features(t, u.group),
	}
}

// features are those observed of rxe on Linux 6.1 and 6.12.
func features(t testing.TB, group hca.GID) hcatest.Features {
	old := strings.HasPrefix(kernel(t), "6.1.")
	return hcatest.Features{
		MGID: group, SendErrorFlushes: !old, ShortRecvIsErr: old, OwnGroupLoops: true, ChecksProtection: true,
	}
}

func kernel(t testing.TB) string {
	t.Helper()
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		t.Fatal(err)
	}
	return unix.ByteSliceToString(name.Release[:])
}

// Host opens the device that a variable names. The caller must close it.
func (u Underlay) Host(t testing.TB, env string) hcatest.Host {
	t.Helper()
	dev := Open(t, env)
	port, err := dev.QueryPort(1)
	if err != nil {
		t.Fatal(err)
	}
	n := netdev{t: t, name: netdevOf(t, os.Getenv(env))}
	return hcatest.Host{Dev: dev, Port: 1, SGIDIndex: u.index(t, port.GIDs), SetLink: n.setUp, AddGID: n.addAddr}
}

// Open opens the device that a variable names. The caller must close it.
func Open(t testing.TB, env string) hca.Device {
	t.Helper()
	if os.Getenv(env) == "" {
		t.Fatalf("%s names no device", env)
	}
	dev, err := verbs.Open(os.Getenv(env))
	if err != nil {
		t.Fatal(err)
	}
	return dev
}

// index returns the index of the first GID of an underlay.
func (u Underlay) index(t testing.TB, gids []hca.GIDEntry) int {
	t.Helper()
	for i, g := range gids {
		if !g.GID.IsZero() && g.Type == hca.GIDTypeRoCEv2 && g.GID.Addr().Is4() == u.v4 {
			return i
		}
	}
	t.Fatalf("no GID for %s in %v", u.Name, gids)
	return 0
}

// netdevOf returns the name of a device's netdev.
func netdevOf(t testing.TB, device string) string {
	t.Helper()
	text, err := os.ReadFile(path.Join("/sys/class/infiniband", device, "ports/1/gid_attrs/ndevs/0"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}
