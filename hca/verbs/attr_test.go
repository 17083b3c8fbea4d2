//go:build cgo && linux

package verbs

import (
	"errors"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"ipoibd/hca"
)

func TestMTU(t *testing.T) {
	for n, want := range map[uint32]hca.MTU{0: 0, 1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096, 6: 0, 1 << 31: 0} {
		if got := mtu(n); got != want {
			t.Errorf("%d: %d, want %d", n, got, want)
		}
	}
}

func TestDeviceAttr(t *testing.T) {
	c := cDeviceAttr{max_qp_wr: 100, max_sge: 30, max_cqe: 400, phys_port_cnt: 2, device_cap_flags: 1 << 18}
	got := deviceAttr("mlx5_0", &c)
	want := hca.DeviceAttr{
		Name: "mlx5_0", Ports: 2, Transport: hca.TransportHardware, MaxQPWR: 100, MaxSGE: 29, MaxCQE: 400, MaxQueues: 1,
		IPCsum: true, MaxTSO: 1 << 16, USO: true, TSOEntries: true,
	}
	if got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if !fillsCsum(&c) {
		t.Error("the capability of checksums is not recognised")
	}
	if c.device_cap_flags = ^c.device_cap_flags; fillsCsum(&c) {
		t.Error("a device without the checksum capability claims it")
	}
}

// A device whose lists have no entry for headers has no large sends and no checksums.
func TestDeviceAttrShortLists(t *testing.T) {
	for _, tt := range []struct {
		device cDeviceAttr
		want   hca.DeviceAttr
	}{
		{cDeviceAttr{max_sge: 2, device_cap_flags: 1 << 18}, hca.DeviceAttr{Transport: hca.TransportHardware, MaxSGE: 2, MaxQueues: 1}},
		{cDeviceAttr{max_sge: 3}, hca.DeviceAttr{Transport: hca.TransportHardware, MaxSGE: 2, MaxQueues: 1, IPCsum: true, MaxTSO: 1 << 16, USO: true, TSOEntries: true}},
	} {
		if got := deviceAttr("", &tt.device); got != tt.want {
			t.Errorf("%d entries: %+v, want %+v", tt.device.max_sge, got, tt.want)
		}
	}
}

func TestPortState(t *testing.T) {
	c := cPortAttr{
		state: 4, max_mtu: 5, active_mtu: 3, lid: 8, lmc: 2, sm_lid: 1, sm_sl: 3, subnet_timeout: 18, link_layer: 1,
	}
	want := hca.PortAttr{
		State: hca.PortActive, MaxMTU: 4096, ActiveMTU: 1024, LinkLayer: hca.LinkLayerInfiniBand,
		LID: 8, LMC: 2, SMLID: 1, SMSL: 3, SubnetTimeout: 18,
	}
	if got := portState(&c); !reflect.DeepEqual(got, want) {
		t.Errorf("port attributes %+v, the library's are %+v", got, want)
	}
}

// The table has each entry at its index, without entries of other ports or beyond
// the table's end.
func TestGIDTable(t *testing.T) {
	got := gidTable([]cGIDEntry{
		{port_num: 1, gid_index: 3, gid_type: 2, gid: [16]byte{15: 4}},
		{port_num: 2, gid_index: 0, gid_type: 0, gid: [16]byte{15: 9}},
		{port_num: 1, gid_index: 0, gid_type: 1, gid: [16]byte{15: 1}},
		{port_num: 1, gid_index: 8, gid_type: 2, gid: [16]byte{15: 9}},
		{port_num: 1, gid_index: 1, gid_type: 0, gid: [16]byte{15: 2}},
	}, 1, 1024, 8)
	want := []hca.GIDEntry{
		{GID: hca.GID{15: 1}, Type: hca.GIDTypeRoCEv1, MaxPayload: 1024},
		{GID: hca.GID{15: 2}, Type: hca.GIDTypeIB, MaxPayload: 1024},
		{},
		{GID: hca.GID{15: 4}, Type: hca.GIDTypeRoCEv2, MaxPayload: 1024},
	}
	if !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if none := gidTable(nil, 1, 1024, 8); len(none) != 0 {
		t.Errorf("table without entries: %+v, want none", none)
	}
}

func TestPortGUID(t *testing.T) {
	gids := []hca.GIDEntry{{GID: hca.GID{0: 0xfe, 1: 0x80, 8: 2, 15: 9}}}
	if got, want := portGUID(gids), (hca.GUID{0: 2, 7: 9}); got != want {
		t.Errorf("%v, want %v", got, want)
	}
	if got := portGUID(nil); got != (hca.GUID{}) {
		t.Errorf("without a GID: %v, want none", got)
	}
}

// rawGID returns a GID as libibverbs represents it.
func rawGID(a string) [16]byte { return hca.GIDFromAddr(netip.MustParseAddr(a)) }

// hereAre returns the addresses of an interface.
func hereAre(index int, addrs ...string) map[address]bool {
	out := map[address]bool{}
	for _, a := range addrs {
		out[address{index, netip.MustParseAddr(a)}] = true
	}
	return out
}

// The netdev of the given GID joins a group, for example that of a VLAN, provided that
// it is in this network namespace.
func TestNetdev(t *testing.T) {
	v4, v6 := rawGID("192.0.2.1"), rawGID("fe80::1")
	entries := []cGIDEntry{
		{port_num: 2, gid_index: 0, gid_type: 2, ndev_ifindex: 8, gid: v4},
		{port_num: 1, gid_index: 0, gid_type: 2, ndev_ifindex: 5, gid: v6},
		{port_num: 1, gid_index: 1, gid_type: 2, ndev_ifindex: 5, gid: v4},
		{port_num: 1, gid_index: 3, gid_type: 2, ndev_ifindex: 6, gid: v4},
		{port_num: 1, gid_index: 4, gid_type: 2, ndev_ifindex: 9, gid: rawGID("192.0.2.77")}, // of a container
		{port_num: 1, gid_index: 5, gid_type: 2, ndev_ifindex: 5, gid: rawGID("192.0.2.78")}, // of a container, by an index that another netdev has here
	}
	here := hereAre(5, "192.0.2.1", "fe80::1")
	maps.Copy(here, hereAre(6, "192.0.2.1"))
	for _, c := range []struct {
		group string
		gid   int
		index int
		err   error
	}{
		{"239.1.2.3", 1, 5, nil},
		{"239.1.2.3", 3, 6, nil},
		{"ff12::1", 0, 5, nil},
		{"ff12::1", 1, 0, errFamily},
		{"239.1.2.3", 0, 0, errFamily},
		{"239.1.2.3", 2, 0, hca.ErrInvalid},
		{"239.1.2.3", 4, 0, errNotHere},
		{"239.1.2.3", 5, 0, errNotHere},
	} {
		g := hca.MulticastGroup{MGID: hca.GIDFromAddr(netip.MustParseAddr(c.group)), SGIDIndex: c.gid}
		if index, err := netdev(entries, 1, g, here); index != c.index || !errors.Is(err, c.err) {
			t.Errorf("%s by GID %d: interface %d, %v; want %d, %v", c.group, c.gid, index, err, c.index, c.err)
		}
	}
}

// The table omits the GIDs of other network namespaces, except link-local ones and
// those without a netdev, as on InfiniBand.
func TestUsableHere(t *testing.T) {
	own, link, subnet := rawGID("192.0.2.1"), rawGID("fe80::9"), rawGID("fd00::7")
	got := usableHere([]cGIDEntry{
		{gid_index: 0, ndev_ifindex: 9, gid: link},
		{gid_index: 1, ndev_ifindex: 5, gid: own},
		{gid_index: 2, ndev_ifindex: 9, gid: own},
		{gid_index: 3, ndev_ifindex: 5, gid: rawGID("192.0.2.77")},
		{gid_index: 4, gid: subnet},
	}, hereAre(5, "192.0.2.1"))
	var left []int
	for _, e := range got {
		left = append(left, int(e.gid_index))
	}
	if want := []int{0, 1, 4}; !slices.Equal(left, want) {
		t.Errorf("usable GIDs %v, want %v", left, want)
	}
}

func TestCompletion(t *testing.T) {
	c := cWC{
		wr_id: 1 << 63, status: 5, opcode: 128, vendor_err: 3, byte_len: 44, qp_num: 0x11, src_qp: 0x12,
		wc_flags: 1 | 1<<2 | 1<<1, pkey_index: 2, slid: 9, sl: 4,
	}
	want := hca.WC{
		ID: 1 << 63, Status: hca.WCWRFlushErr, Opcode: hca.WCRecv, VendorErr: 3, ByteLen: 44, QPN: 0x11, SrcQPN: 0x12,
		Flags: hca.WCFlagGRH | hca.WCFlagIPCsumOK, PKeyIndex: 2, SLID: 9, SL: 4,
	}
	if got := completion(&c); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := completion(&cWC{}); got != (hca.WC{}) {
		t.Errorf("completion of a send: %+v, want a zero one", got)
	}
}
