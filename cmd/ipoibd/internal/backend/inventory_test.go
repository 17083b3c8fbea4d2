package backend

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/hca"
	"ipoibd/hca/rdma"
	"ipoibd/hca/soft"
	"ipoibd/hca/soft/memfabric"
	"ipoibd/hca/soft/transport"
	"ipoibd/hca/soft/udp"
)

var addr = netip.MustParseAddr("10.0.0.1")

// system returns a system with a software HCA on eth0 and the given devices, which can be
// opened.
func system(t *testing.T, devices ...rdma.Device) System {
	fabric := memfabric.New(1)
	return System{
		Devices: func() ([]rdma.Device, error) { return devices, nil },
		Users:   func(rdma.Device) ([]rdma.User, error) { return nil, nil },
		Open: func(name string) (hca.Device, error) {
			dev, err := soft.Open(soft.Config{Name: name, Transport: fabric.Attach(name, 1500, addr)})
			if err == nil {
				t.Cleanup(func() {
					if _, err := dev.AllocPD(); !errors.Is(err, hca.ErrClosed) {
						t.Errorf("%s was left open: %v", name, err)
					}
				})
			}
			return dev, err
		},
		Bind:   func(string) error { return nil },
		Netdev: func() (string, error) { return "eth0", nil },
		Look: func(name string) (transport.State, error) {
			return transport.State{Name: name, Present: true, Up: true, Addrs: []netip.Addr{addr}}, nil
		},
	}
}

// roceDevice returns a RoCE device without troubles.
func roceDevice(name string) rdma.Device {
	gid := rdma.GID{Index: 1, GID: hca.GIDFromAddr(addr), Type: hca.GIDTypeRoCEv2, Netdev: "eth1", Here: true}
	return rdma.Device{
		Name: name, NodeType: "CA", NodeGUID: hca.GUID{7: 1}, PCIAddr: "0000:03:00.0", Verbs: "uverbs0",
		Ports: []rdma.Port{{Num: 1, State: hca.PortActive, LinkLayer: hca.LinkLayerEthernet, GIDs: []rdma.GID{gid}}},
	}
}

func take(t *testing.T, s System) []Entry {
	t.Helper()
	entries, err := s.Take()
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

// troubles returns all troubles of an entry, those of a port with its number.
func troubles(e Entry) (out []string) {
	out = slices.Clone(e.Trouble)
	for _, p := range e.Ports {
		for _, t := range p.Trouble {
			out = append(out, fmt.Sprintf("%d: %s", p.Num, t))
		}
	}
	return out
}

func TestUsable(t *testing.T) {
	rxe := roceDevice("rxe0")
	rxe.Parent = "eth1"
	s := system(t, roceDevice("mlx5_0"), rxe)
	s.Users = func(d rdma.Device) ([]rdma.User, error) {
		return []rdma.User{{PID: 7, Name: d.Name + "-user"}}, errors.New("no queue pairs")
	}
	entries := take(t, s)
	for i, want := range []Entry{
		{Name: "soft", Kind: KindSoftware, Netdev: "eth0"},
		{Name: "mlx5_0", Kind: KindHardware, PCIAddr: "0000:03:00.0", Users: []string{"mlx5_0-user (pid 7)"}},
		{Name: "rxe0", Kind: KindSoftRoCE, PCIAddr: "0000:03:00.0", Netdev: "eth1", Users: []string{"rxe0-user (pid 7)"}},
	} {
		e := entries[i]
		if e.Name != want.Name || e.Kind != want.Kind || e.Netdev != want.Netdev || e.PCIAddr != want.PCIAddr || !slices.Equal(e.Users, want.Users) {
			t.Errorf("%+v, want %+v", e, want)
		}
		if len(e.Ports) != 1 || e.Ports[0].State != hca.PortActive || e.Ports[0].GIDs[0].GID.Addr() != addr || len(troubles(e)) != 0 {
			t.Errorf("%s: %+v, %q", e.Name, e.Ports, troubles(e))
		}
	}
}

func TestTroubles(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*rdma.Device, *System)
		entry  int
		want   string // begins one of the troubles
	}{
		{"port down", func(d *rdma.Device, _ *System) { d.Ports[0].State = hca.PortDown }, 1, "1: it is not active"},
		{"no GID", func(d *rdma.Device, _ *System) { d.Ports[0].GIDs = []rdma.GID{} }, 1, "1: it has no GID"},
		{"RoCE v1", func(d *rdma.Device, _ *System) { d.Ports[0].GIDs[0].Type = hca.GIDTypeRoCEv1 }, 1, "1: all its GIDs are of type RoCE v1"},
		{"of a container", func(d *rdma.Device, _ *System) { d.Ports[0].GIDs[0].Here = false }, 1, "1: none of its GIDs is an address in this network namespace"},
		{"SM LID 0", func(d *rdma.Device, _ *System) { d.Ports[0].LinkLayer = hca.LinkLayerInfiniBand }, 1, "1: no subnet manager has configured it"},
		{"GUID 0", func(d *rdma.Device, _ *System) { d.NodeGUID = hca.GUID{} }, 1, "its node GUID is 0"},
		{"no verbs", func(d *rdma.Device, _ *System) { d.Verbs = "" }, 1, "it has no verbs interface"},
		{"name of the software HCA", func(d *rdma.Device, _ *System) { d.Name = "soft" }, 1, "--device does not take its name; to rename it: rdma dev set \"soft\" name"},
		{"name with a space", func(d *rdma.Device, _ *System) { d.Name = "a b" }, 1, "--device does not take its name; to rename it: rdma dev set \"a b\" name"},
		{"no library", func(_ *rdma.Device, s *System) {
			s.Open = func(string) (hca.Device, error) { return nil, errors.New("libibverbs is missing") }
		}, 1, "libibverbs is missing"},
		{"no netdev", func(_ *rdma.Device, s *System) {
			s.Netdev = func() (string, error) { return "", hca.ErrNoDevice }
		}, 0, "no such device"},
		{"the kernel has the UDP port", func(_ *rdma.Device, s *System) {
			s.Bind = func(string) error { return &udp.PortTakenError{Port: 4791, Kernel: "rdma_rxe"} }
		}, 0, "UDP port 4791: port taken by the kernel module rdma_rxe"},
		{"netdev gone", func(_ *rdma.Device, s *System) {
			s.Look = func(string) (transport.State, error) { return transport.State{}, hca.ErrNoDevice }
		}, 0, "no such device"},
		{"netdev down", func(_ *rdma.Device, s *System) {
			s.Look = func(n string) (transport.State, error) {
				return transport.State{Name: n, Addrs: []netip.Addr{addr}}, nil
			}
		}, 0, "1: eth0 is down"},
		{"no address", func(_ *rdma.Device, s *System) {
			s.Look = func(n string) (transport.State, error) { return transport.State{Name: n, Up: true}, nil }
		}, 0, "1: eth0 has no IP address"},
	} {
		d := roceDevice("mlx5_0")
		s := system(t)
		c.change(&d, &s)
		s.Devices = func() ([]rdma.Device, error) { return []rdma.Device{d}, nil }
		got := troubles(take(t, s)[c.entry])
		if !slices.ContainsFunc(got, func(t string) bool { return strings.HasPrefix(t, c.want) }) {
			t.Errorf("%s: %q, want one of %q...", c.name, got, c.want)
		}
	}
}

// A software HCA whose UDP port another process has cannot be used, and is in use by that
// process.
func TestPortTaken(t *testing.T) {
	s := system(t)
	s.Bind = func(string) error {
		return fmt.Errorf("open: %w", &udp.PortTakenError{Port: 4791, Holders: []udp.Holder{{PID: 7, Name: "ipoibd"}}})
	}
	if e := take(t, s)[0]; !slices.Equal(e.Users, []string{"ipoibd (pid 7)"}) || len(e.Trouble) != 1 {
		t.Errorf("%+v", e)
	}
}

func TestKernelWithoutRDMA(t *testing.T) {
	s := system(t)
	s.Devices = func() ([]rdma.Device, error) { return nil, fmt.Errorf("list: %w", rdma.ErrNoSubsystem) }
	if entries := take(t, s); len(entries) != 1 || entries[0].Name != "soft" {
		t.Errorf("%+v", entries)
	}
	s.Devices = func() ([]rdma.Device, error) { return nil, hca.ErrNoMemory }
	if _, err := s.Take(); !errors.Is(err, hca.ErrNoMemory) {
		t.Errorf("a list that fails: %v", err)
	}
}

// In JSON an empty list is a list, not null.
func TestNoNulls(t *testing.T) {
	s := system(t, rdma.Device{Name: "odd"})
	text, err := json.Marshal(take(t, s))
	if err != nil || strings.Contains(string(text), "null") {
		t.Errorf("%s, %v", text, err)
	}
}

// The loopback leads to no other host.
func TestLoopbackIsNoUnderlay(t *testing.T) {
	const want = "lo is a loopback, which leads to no other host; choose another netdev as the underlay"
	if _, err := newSoftHCA(config.Device{HCA: config.SoftHCA, Soft: config.Soft{Underlay: "lo"}}, nil, slog.New(slog.DiscardHandler)); err == nil || err.Error() != want {
		t.Errorf("run: %v, want %s", err, want)
	}
	s := Local(nil, "lo")
	s.Devices = system(t).Devices
	if got := troubles(take(t, s)[0]); !slices.Contains(got, want) {
		t.Errorf("devices: %q, want %s", got, want)
	}
}
