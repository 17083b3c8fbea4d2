package rdma

import (
	"errors"
	"io/fs"
	"net"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
)

// describeAll describes the devices including their GIDs.
func describeAll(tree fs.FS, links ...indexed) []Device {
	out, err := describe(tree, links)
	if err != nil {
		panic(err)
	}
	for i := range out {
		out[i].readGIDs(tree)
		out[i].markHere([]net.Addr{&net.IPNet{IP: net.IPv4(10, 9, 0, 2), Mask: net.CIDRMask(24, 32)}})
	}
	return out
}

func TestSoftRoCE(t *testing.T) {
	guid := hca.GUID{0x50, 0x54, 0, 0xff, 0xfe, 9, 0, 2}
	want := []Device{{
		Name: "rxe0", Index: 7, NodeType: "CA", NodeGUID: guid, SysImageGUID: guid,
		PCIAddr: "0000:00:02.0", Parent: "eth0", Verbs: "uverbs0",
		Ports: []Port{{
			Num: 1, State: hca.PortActive, LinkLayer: hca.LinkLayerEthernet, GUID: guid,
			GIDs: []GID{
				{0, hca.GID{0: 0xfe, 1: 0x80, 8: 0x50, 9: 0x54, 11: 0xff, 12: 0xfe, 13: 9, 15: 2}, hca.GIDTypeRoCEv2, "eth0", false},
				{1, hca.GID{10: 0xff, 11: 0xff, 12: 10, 13: 9, 15: 2}, hca.GIDTypeRoCEv2, "eth0", true},
			},
		}},
	}}
	got := describeAll(load(fixture(t, "rxe.sysfs")), indexed{7, "rxe0"})
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// mixed returns the devices of the fixture of hardware.
func mixed(t *testing.T) map[string]Device {
	t.Helper()
	out := map[string]Device{}
	links := []indexed{{4, "warp0"}, {1, "ib0"}, {2, "roce0"}, {3, "roce1"}, {9, "gone"}}
	for _, d := range describeAll(load(fixture(t, "mixed.sysfs")), links...) {
		out[d.Name] = d
	}
	return out
}

func TestTroubles(t *testing.T) {
	devices := mixed(t)
	for _, c := range []struct {
		name   string
		device []Trouble
		ports  [][]Trouble
	}{
		{"ib0", nil, [][]Trouble{nil, {NoSubnetManager}}},
		{"roce0", []Trouble{NoGUID}, [][]Trouble{{OnlyRoCEv1}}},
		{"roce1", nil, [][]Trouble{{PortDown, NoGID}}},
		{"warp0", []Trouble{NoVerbs, NotIBTA, NoPort}, nil},
	} {
		d := devices[c.name]
		if got := d.Troubles(); !slices.Equal(got, c.device) {
			t.Errorf("%s: %v, want %v", c.name, got, c.device)
		}
		if len(d.Ports) != len(c.ports) {
			t.Fatalf("%s has %d ports, want %d", c.name, len(d.Ports), len(c.ports))
		}
		for i, p := range d.Ports {
			if got := p.Troubles(); !slices.Equal(got, c.ports[i]) {
				t.Errorf("%s, port %d: %v, want %v", c.name, p.Num, got, c.ports[i])
			}
		}
	}
	if len(devices) != 4 {
		t.Errorf("%d devices, want 4", len(devices))
	}
	if got := describeAll(load(fixture(t, "rxe.sysfs")), indexed{1, "rxe0"})[0]; got.Troubles() != nil || got.Ports[0].Troubles() != nil {
		t.Errorf("troubles of Soft-RoCE: %v, %v, want none", got.Troubles(), got.Ports[0].Troubles())
	}
}

func TestHardware(t *testing.T) {
	d := mixed(t)["ib0"]
	if d.PCIAddr != "0000:03:00.0" || d.Verbs != "uverbs3" || d.Parent != "" {
		t.Errorf("ib0: %+v, want 0000:03:00.0, uverbs3 and no parent", d)
	}
	if got, want := d.Ports[0].GUID.String(), "0002:c903:0010:1001"; got != want {
		t.Errorf("port GUID %s, want %s", got, want)
	}
	if p, ok := d.Port(1); !ok || p.SMLID != 1 || p.GIDs[0].Type != hca.GIDTypeIB {
		t.Errorf("port 1: %+v, want its SM LID and GID type", p)
	}
	if _, ok := d.Port(3); ok {
		t.Error("the device has a port 3, want 2 ports")
	}
	if d = mixed(t)["roce0"]; d.Ports[0].GIDs[0].Type != hca.GIDTypeRoCEv1 || d.Ports[0].GUID != d.NodeGUID {
		t.Errorf("roce0: %+v, want a RoCE v1 GID and the node GUID as the port's", d)
	}
}

// If a part of a device disappears during the reading, or is invalid, the list omits
// that part, or the device.
func TestDamagedTree(t *testing.T) {
	const dir = "devices/virtual/infiniband/rxe0/"
	for _, c := range []struct {
		name   string
		change func(fstest.MapFS)
		want   string // the device as text; empty: not in the list
	}{
		{"no GUID", func(m fstest.MapFS) { delete(m, dir+"node_guid") }, ""},
		{"odd GUID", func(m fstest.MapFS) { m[dir+"sys_image_guid"].Data = []byte("5054") }, ""},
		{"no state", func(m fstest.MapFS) { delete(m, dir+"ports/1/state") }, ""},
		{"odd state", func(m fstest.MapFS) { m[dir+"ports/1/state"].Data = []byte("9: FINE") }, ""},
		{"odd SM LID", func(m fstest.MapFS) { m[dir+"ports/1/sm_lid"].Data = []byte("0x10000") }, "rxe0 1:0/2"},
		{"odd GID", func(m fstest.MapFS) { m[dir+"ports/1/gids/0"].Data = []byte("fe80") }, "rxe0 1:0/1"},
		{"odd port", func(m fstest.MapFS) { m[dir+"ports/01/state"] = &fstest.MapFile{} }, "rxe0 1:0/2"},
		{"port 256", func(m fstest.MapFS) { m[dir+"ports/256/state"] = &fstest.MapFile{} }, "rxe0 1:0/2"},
		{"large", func(m fstest.MapFS) { m[dir+"node_guid"].Data = make([]byte, 1<<20) }, ""},
	} {
		tree := load(fixture(t, "rxe.sysfs"))
		c.change(tree)
		var got string
		for _, d := range describeAll(tree, indexed{1, "rxe0"}) {
			got = d.Name
			for _, p := range d.Ports {
				got += strings.Join([]string{" ", string('0' + rune(p.Num)), ":", string('0' + rune(p.SMLID)), "/", string('0' + rune(len(p.GIDs)))}, "")
			}
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// Without sysfs the devices are unknown, so List fails instead of reporting that there
// are none.
func TestNoSysfs(t *testing.T) {
	if got, err := describe(fstest.MapFS{}, []indexed{{1, "rxe0"}}); err == nil || errors.Is(err, hca.ErrNoDevice) {
		t.Errorf("without sysfs: %v, %v, want an error other than ErrNoDevice", got, err)
	}
	if got, err := describe(fstest.MapFS{}, nil); err != nil || len(got) > 0 {
		t.Errorf("no device: %v, %v, want an empty list", got, err)
	}
}

// brokenFS is a file system in which every access to one name fails.
type brokenFS struct {
	fstest.MapFS
	name string
	err  error
}

func (b brokenFS) Open(name string) (fs.File, error) {
	if name == b.name {
		return nil, &fs.PathError{Op: "open", Path: name, Err: b.err}
	}
	return b.MapFS.Open(name)
}

func (b brokenFS) ReadLink(name string) (string, error) {
	if name == b.name {
		return "", &fs.PathError{Op: "readlink", Path: name, Err: b.err}
	}
	return b.MapFS.ReadLink(name)
}

func (b brokenFS) ReadDir(name string) ([]fs.DirEntry, error) {
	if name == b.name {
		return nil, &fs.PathError{Op: "open", Path: name, Err: b.err}
	}
	return b.MapFS.ReadDir(name)
}

// A lack of descriptors or memory makes the whole list fail. It does not make a device
// look removed, or look as if it had no GUID, port or netdev (R24).
func TestR24UnreadableIsNotRemoved(t *testing.T) {
	const dir = "class/infiniband/rxe0"
	links := []indexed{{1, "rxe0"}}
	for _, name := range []string{
		dir + "/node_guid", dir + "/parent", dir + "/ports", dir + "/ports/1/state", "class/net/eth0", "class/infiniband_verbs",
		"class/infiniband_verbs/uverbs0/ibdev",
	} {
		for _, err := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM} {
			got, err := describe(brokenFS{load(fixture(t, "rxe.sysfs")), name, err}, links)
			if !errors.Is(err, hca.ErrNoMemory) || strings.Contains(err.Error(), "\n") || errors.Is(err, hca.ErrNoDevice) || got != nil {
				t.Errorf("%s: %+v, %v, want ErrNoMemory in one line, and no list", name, got, err)
			}
		}
	}
	if got, err := describe(brokenFS{load(fixture(t, "rxe.sysfs")), dir + "/node_guid", unix.ENODEV}, links); err != nil || len(got) > 0 {
		t.Errorf("a device that disappears during the reading: %+v, %v", got, err)
	}
}

func TestFindNamesWhatIsThere(t *testing.T) {
	devices := []Device{{Name: "mlx5_0"}, {Name: "rxe0"}}
	if d, err := Find(devices, "rxe0"); err != nil || d.Name != "rxe0" {
		t.Errorf("find rxe0: %+v, %v", d, err)
	}
	_, err := Find(devices, "rxe1")
	if !errors.Is(err, hca.ErrNoDevice) || !strings.HasSuffix(err.Error(), "available: mlx5_0, rxe0") {
		t.Error(err)
	}
	if _, err := Find(nil, "rxe1"); !errors.Is(err, hca.ErrNoDevice) || !strings.HasSuffix(err.Error(), "the kernel has none") {
		t.Error(err)
	}
}

// FuzzTree checks, for any content of the tree, that the list contains only the named
// devices, in order, with numbers in their ranges.
func FuzzTree(f *testing.F) {
	f.Add(fixture(f, "rxe.sysfs"))
	f.Add(fixture(f, "mixed.sysfs"))
	f.Fuzz(func(t *testing.T, text string) {
		tree := load(text)
		var links []indexed
		entries, _ := fs.ReadDir(tree, classDevices)
		for i, e := range entries {
			links = append(links, indexed{uint32(i), e.Name()})
		}
		got := describeAll(tree, links...)
		if len(got) > len(links) {
			t.Fatalf("%d devices of %d names", len(got), len(links))
		}
		for _, d := range got {
			d.Troubles()
			for _, p := range d.Ports {
				if p.Num == 0 || p.State > hca.PortActiveDefer || len(p.GIDs) > maxGIDs {
					t.Fatalf("invalid port %+v", p)
				}
				p.Troubles()
			}
			if d.PCIAddr != "" && !pciPattern.MatchString(d.PCIAddr) {
				t.Fatalf("invalid PCI address %q", d.PCIAddr)
			}
		}
	})
}
