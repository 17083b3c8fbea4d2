package verbstest

import (
	"fmt"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
	"ipoibd/hca/hcatest"
	"ipoibd/hca/verbs"
)

// The environment variables that name the two devices, and a group on InfiniBand.
const (
	EnvA    = "TEST_IPOIBD_VERBS_A"
	EnvB    = "TEST_IPOIBD_VERBS_B"
	EnvMGID = "TEST_IPOIBD_VERBS_MGID"
	EnvMLID = "TEST_IPOIBD_VERBS_MLID" // decimal
)

// Underlay is an IP version or InfiniBand, with a multicast group.
type Underlay struct {
	Name  string
	kind  hca.GIDType
	v4    bool
	group hca.GID
	mlid  uint16
}

func gid(s string) hca.GID { return hca.GIDFromAddr(netip.MustParseAddr(s)) }

// The underlays of RoCE v2.
var (
	IPv6 = Underlay{Name: "IPv6", kind: hca.GIDTypeRoCEv2, group: gid("ff12:401b:ffff::ffff:ffff")}
	IPv4 = Underlay{Name: "IPv4", kind: hca.GIDTypeRoCEv2, v4: true, group: gid("239.1.2.3")}
)

// Underlays returns those of the devices: both IP versions, or InfiniBand.
func Underlays(t testing.TB) []Underlay {
	t.Helper()
	if os.Getenv(EnvMGID) == "" {
		return []Underlay{IPv6, IPv4}
	}
	u := Underlay{Name: "InfiniBand", kind: hca.GIDTypeIB, group: gid(os.Getenv(EnvMGID))}
	mlid, err := strconv.ParseUint(os.Getenv(EnvMLID), 10, 16)
	if err != nil {
		t.Fatalf("%s: %v", EnvMLID, err)
	}
	u.mlid = uint16(mlid)
	return []Underlay{u}
}

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
		Features: u.features(t),
	}
}

// features are those observed of rxe, and of rdmavt on InfiniBand, on Linux 6.1 and 6.12.
func (u Underlay) features(t testing.TB) hcatest.Features {
	f := hcatest.Features{MGID: u.group, MLID: u.mlid, OwnGroupLoops: true, ChecksProtection: true}
	if u.kind == hca.GIDTypeRoCEv2 {
		old := strings.HasPrefix(kernel(t), "6.1.")
		f.SendErrorFlushes, f.ShortRecvIsErr = !old, old
	}
	return f
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
	h := hcatest.Host{Dev: dev, Port: 1, SGIDIndex: u.index(t, port.GIDs), DLID: port.LID}
	if u.kind == hca.GIDTypeIB {
		h.SetLink = netdev{t: t, name: wireOf(t, os.Getenv(env))}.setUp
		return h
	}
	n := netdev{t: t, name: netdevOf(t, os.Getenv(env))}
	h.SetLink, h.AddGID = n.setUp, n.addAddr
	return h
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
		if !g.GID.IsZero() && g.Type == u.kind && g.GID.Addr().Is4() == u.v4 {
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

// wireOf returns the name of the netdev that carries the packets of an InfiniBand HCA. The interfaces of the kernel's
// IPoIB are beside it, and have another type.
func wireOf(t testing.TB, device string) string {
	t.Helper()
	netdevs, _ := filepath.Glob(path.Join("/sys/class/infiniband", device, "device/net/*"))
	for _, dir := range netdevs {
		if text, err := os.ReadFile(path.Join(dir, "type")); err == nil && strings.TrimSpace(string(text)) == fmt.Sprint(unix.ARPHRD_ETHER) {
			return path.Base(dir)
		}
	}
	t.Fatalf("netdevs of %s: %q, want one of Ethernet", device, netdevs)
	return ""
}
