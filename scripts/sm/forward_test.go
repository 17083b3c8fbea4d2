package sm

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"ipoibd/hca"
	"ipoibd/scripts/vm/ibwire"
)

// A switch with hosts on ports 3, 4 and 5, the subnet manager on port 1 and the switch's own tool on port 2. LID n is
// that of port n; the groups 0xc000 and 0xc002 have members.
func switchTables() *tables {
	t := &tables{linear: slices.Repeat([]uint8{noPort}, linearBlock), groups: make([]portMask, 2*groupBlock)}
	for n := range uint8(6) {
		t.linear[n] = n
	}
	t.linear[9] = 9 // a port that the switch lacks
	t.groups[0] = 1<<3 | 1<<4
	t.groups[2] = 1<<0 | 1<<1 | 1<<5 | 1<<12
	return t
}

func switchPorts() []port {
	active := port{attached: true, state: hca.PortActive, mtu: 2048}
	return []port{{}, {state: hca.PortActive}, {state: hca.PortActive}, active, active, active}
}

func TestForward(t *testing.T) {
	mad := make([]byte, madLen)
	for _, c := range []struct {
		name string
		in   uint8
		p    ibwire.Packet
		spy  func(ports []port)
		want verdict
	}{
		{name: "to a host", in: 3, p: ibwire.Packet{DLID: 4}, want: verdict{out: []uint8{4}}},
		{name: "back to the sender", in: 3, p: ibwire.Packet{DLID: 3}, want: verdict{out: []uint8{3}}},
		{name: "to QP1 of a host", in: 3, p: ibwire.Packet{DLID: 4, DestQPN: 1, Payload: mad}, want: verdict{out: []uint8{4}}},
		{name: "to QP1 of the subnet manager", in: 3, p: ibwire.Packet{DLID: 1, DestQPN: 1, Payload: mad}, want: verdict{relay: true}},
		{name: "no management packet", in: 3, p: ibwire.Packet{DLID: 1, DestQPN: 1, Payload: mad[:255]}, want: verdict{drop: DropNoHost}},
		{name: "to another QP of the subnet manager", in: 3, p: ibwire.Packet{DLID: 1, DestQPN: 7}, want: verdict{drop: DropNoHost}},
		{name: "no route", in: 3, p: ibwire.Packet{DLID: 6}, want: verdict{drop: DropNoRoute}},
		{name: "no such port", in: 3, p: ibwire.Packet{DLID: 9}, want: verdict{drop: DropNoRoute}},
		{name: "above the table", in: 3, p: ibwire.Packet{DLID: linearBlock}, want: verdict{drop: DropNoRoute}},
		{name: "permissive LID", in: 3, p: ibwire.Packet{DLID: ibwire.Permissive}, want: verdict{drop: DropNoRoute}},
		{name: "group of the sender", in: 3, p: ibwire.Packet{DLID: 0xc000}, want: verdict{out: []uint8{4}}},
		{name: "group of others", in: 5, p: ibwire.Packet{DLID: 0xc000}, want: verdict{out: []uint8{3, 4}}},
		{name: "group with members elsewhere", in: 3, p: ibwire.Packet{DLID: 0xc002}, want: verdict{out: []uint8{5}}},
		{name: "only member", in: 5, p: ibwire.Packet{DLID: 0xc002}, want: verdict{drop: DropNoMember}},
		{name: "group without members", in: 3, p: ibwire.Packet{DLID: 0xc001}, want: verdict{drop: DropNoMember}},
		{name: "group above the table", in: 3, p: ibwire.Packet{DLID: 0xc000 + 2*groupBlock}, want: verdict{drop: DropNoMember}},
		{name: "longest", in: 3, p: ibwire.Packet{DLID: 4, Payload: make([]byte, 2048)}, want: verdict{out: []uint8{4}}},
		{name: "too long", in: 3, p: ibwire.Packet{DLID: 4, Payload: make([]byte, 2049)}, want: verdict{drop: DropTooLong}},
		{name: "from a port that is down", in: 3, p: ibwire.Packet{DLID: 4}, spy: func(p []port) { p[3].state = hca.PortDown }, want: verdict{drop: DropPortDown}},
		{name: "to a port that is down", in: 3, p: ibwire.Packet{DLID: 4}, spy: func(p []port) { p[4].state = hca.PortInit }, want: verdict{drop: DropPortDown}},
		{
			name: "to a group with a port that is down", in: 5, p: ibwire.Packet{DLID: 0xc000},
			spy: func(p []port) { p[3].state = hca.PortDown }, want: verdict{out: []uint8{4}, drop: DropPortDown},
		},
	} {
		ports := switchPorts()
		if c.spy != nil {
			c.spy(ports)
		}
		if got := forward(switchTables(), ports, c.in, &c.p); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

// Whatever the tables contain, a packet leaves only by active ports with hosts, never twice by the same, and a group's
// packet never by the port on which it arrived. One that goes nowhere has a reason.
func TestForwardAnyTables(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tab := tables{
			linear: rapid.SliceOfN(rapid.Uint8(), 0, 80).Draw(t, "linear"),
			groups: rapid.SliceOfN(rapid.Map(rapid.Uint16(), func(m uint16) portMask { return portMask(m) }), 0, 40).Draw(t, "groups"),
		}
		ports := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) port {
			return port{rapid.Bool().Draw(t, "attached"), hca.PortState(rapid.Uint8Range(1, 5).Draw(t, "state")), 2048}
		}), 1, 16).Draw(t, "ports")
		in := uint8(rapid.IntRange(0, len(ports)-1).Draw(t, "in"))
		p := ibwire.Packet{
			DLID:    rapid.OneOf(rapid.Uint16Max(90), rapid.Uint16Range(0xc000, 0xc030), rapid.Just[uint16](0xffff)).Draw(t, "DLID"),
			DestQPN: hca.QPN(rapid.Uint32Max(2).Draw(t, "QPN")), Payload: make([]byte, rapid.SampledFrom([]int{0, madLen, 3000}).Draw(t, "length")),
		}
		v := forward(&tab, ports, in, &p)
		if len(v.out) == 0 && !v.relay && v.drop == "" {
			t.Fatalf("%+v goes nowhere without a reason", p)
		}
		for i, out := range v.out {
			if !ports[out].attached || ports[out].state != hca.PortActive || slices.Contains(v.out[:i], out) || out == in && ibwire.IsMulticast(p.DLID) {
				t.Fatalf("%+v from port %d leaves by ports %v of %+v", p, in, v.out, ports)
			}
		}
	})
}

func TestPortMask(t *testing.T) {
	for mask, want := range map[portMask]string{0: "[]", 1: "[0]", 1<<15 | 1<<3: "[3 15]", 0xffff: "[0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15]"} {
		if got := fmt.Sprintf("%d", mask.ports()); got != want {
			t.Errorf("ports of %#x: %s, want %s", uint16(mask), got, want)
		}
	}
}

// The sizes of the tables are those that the switch reports, within what LIDs allow.
func TestTableSizes(t *testing.T) {
	info := make([]byte, dataSize)
	copy(info, "\xc0\x00\x00\x00\x04\x00\x00\x05") // 49152 LIDs, 1024 groups, LIDs up to 5
	if linear, groups := tableSizes(info); linear != 6 || groups != 1024 {
		t.Errorf("%d and %d entries, want 6 and 1024", linear, groups)
	}
	for i := range 8 {
		info[i] = 0xff
	}
	if linear, groups := tableSizes(info); linear != 0xc000 || groups != 0x3fff {
		t.Errorf("%#x and %#x entries, want as many as there are LIDs", linear, groups)
	}
}

func TestGroupBlock(t *testing.T) {
	block := make([]byte, dataSize)
	block[1], block[62], block[63] = 0x18, 0x80, 0x08
	var tab tables
	tab.addGroups(block)
	tab.addGroups(block)
	for mlid, want := range map[uint16]portMask{0xc000: 0x18, 0xc001: 0, 0xc01f: 0x8008, 0xc020: 0x18, 0xc03f: 0x8008, 0xc040: 0, 0xbfff: 0} {
		if got := tab.multicast(mlid); got != want {
			t.Errorf("group %#x: ports %#x, want %#x", mlid, uint16(got), uint16(want))
		}
	}
}
