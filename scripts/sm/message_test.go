package sm

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"ipoibd/hca"
	"ipoibd/scripts/vm/ibwire"
)

func TestEnvelopeBytes(t *testing.T) {
	e := envelope{dlid: 0x0102, slid: 0x0304, destQP: 1, fromQP: 2, status: 110}
	e.mad[0], e.mad[255] = 0xaa, 0xbb
	want := append([]byte{1, 2, 0, 0, 3, 4, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 110, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0xaa}, make([]byte, 255)...)
	want[dataLen-1] = 0xbb
	got := e.bytes()
	if !bytes.Equal(got, want) {
		t.Errorf("% x, want\n% x", got, want)
	}
	var back envelope
	if !back.parse(got) || back != e {
		t.Errorf("parsed %+v, want %+v", back, e)
	}
	for n := range got {
		if back.parse(got[:n]) {
			t.Errorf("%d of %d bytes are accepted", n, len(got))
		}
	}
	if back.parse(append(got, 0)) {
		t.Error("a message that is too long is accepted")
	}
}

func TestControlMessage(t *testing.T) {
	b := controlMessage(7, typeConnect, connectMessage(0x11223344, "H-1"))
	word := func(i int) uint32 { return binary.NativeEndian.Uint32(b[i:]) }
	if len(b) != controlLen || word(0) != magic || word(4) != 7 || word(8) != typeConnect || word(12) != connectLen || word(16) != 0x11223344 {
		t.Errorf("message % x", b)
	}
	if node := b[controlData+offNode : controlData+connectLen]; string(bytes.TrimRight(node, "\x00")) != "H-1" {
		t.Errorf("node %q, want H-1", node)
	}
	if long := connectMessage(1, strings.Repeat("n", 99)); len(long) != connectLen || long[connectLen-1] != 0 {
		t.Errorf("a long name is not terminated: %q", long)
	}
	data, err := parseControl(b, typeConnect)
	if err != nil || connectedSlot(data) != 0x11223344 || len(data) != controlLen-controlData {
		t.Errorf("reply % x, %v", data, err)
	}
	if _, err := parseControl(b, typePKeys); err == nil {
		t.Error("a reply of another type is accepted")
	}
	if _, err := parseControl(controlMessage(7, typeError, nil), typeConnect); !errors.Is(err, errRefused) {
		t.Errorf("an error of ibsim: %v, want %v", err, errRefused)
	}
	for n := range b {
		if _, err := parseControl(b[:n], typeConnect); err == nil {
			t.Errorf("%d of %d bytes are accepted", n, len(b))
		}
	}
}

// FuzzMessages checks that no datagram of ibsim's is read out of bounds.
func FuzzMessages(f *testing.F) {
	f.Add(controlMessage(1, typePortInfo, []byte{1}))
	f.Add((&envelope{dlid: 1}).bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		var e envelope
		if e.parse(b) && !bytes.Equal(e.bytes()[32:], b[32:]) {
			t.Fatalf("% x is %+v", b, e)
		}
		if data, err := parseControl(b, typePortInfo); err == nil && len(data) != infoLen {
			t.Fatalf("%d bytes of a PortInfo", len(data))
		}
	})
}

func TestSwitchRequest(t *testing.T) {
	mad := getFromSwitch(0x0102030405060708, attrMulticast, 0x00000011)
	want := "01810101 00000001 0102030405060708 001b0000 00000011 0000000000000000 ffffffff"
	if got := hex.EncodeToString(mad[:36]); got != strings.ReplaceAll(want, " ", "") {
		t.Errorf("header %s, want %s", got, want)
	}
	if path := mad[offPath : offPath+3]; !bytes.Equal(path, []byte{0, 1, 0}) {
		t.Errorf("path % x, want port 1 after the first byte", path)
	}
}

func TestJoinRequest(t *testing.T) {
	g := Group{MGID: hca.GID{0: 0xff, 15: 9}, MLID: 0xc123, QKey: 0x0b1b, PKey: 0x8001, MTU: 4, Rate: 7, SL: 2, Scope: 2}
	mad := joinRequest(methodSet, &g, hca.GID{0: 0xfe, 15: 3})
	rec := mad[offRecord : offRecord+recLen]
	want := "ff000000000000000000000000000009 fe000000000000000000000000000003 00000b1b 0000 84 00 8001 87 00 20000000 21 000000"
	if got := hex.EncodeToString(rec); got != strings.ReplaceAll(want, " ", "") {
		t.Errorf("record %s, want %s", got, want)
	}
	if head := hex.EncodeToString(mad[:20]); head != "01030202"+"00000000"+"0000000000000000"+"00380000" {
		t.Errorf("header %s", head)
	}
	if mask := binary.BigEndian.Uint64(mad[offMask:]); mask != maskCreate {
		t.Errorf("mask %#x, want %#x", mask, maskCreate)
	}
	binary.BigEndian.PutUint16(rec[recMLID:], g.MLID)
	if got := parseGroup(mad); got != g {
		t.Errorf("group %+v, want %+v", got, g)
	}
	g.QKey = 0
	if mask := binary.BigEndian.Uint64(joinRequest(methodDelete, &g, hca.GID{})[offMask:]); mask != maskJoin {
		t.Errorf("mask %#x of a request without a Q_Key, want %#x", mask, maskJoin)
	}
	if mask := binary.BigEndian.Uint64(groupRequest(g.MGID)[offMask:]); mask != maskMGID {
		t.Errorf("mask %#x of a request for a group, want %#x", mask, maskMGID)
	}
}

func TestAttributes(t *testing.T) {
	info, pkeys := make([]byte, infoLen), make([]byte, 2*32)
	copy(info[infoPrefix:], "\xfe\x80\x00\x00\x00\x00\x00\x00\x00\x05\x00\x01")
	info[infoState], info[infoLMC], info[infoMTUSL] = 0x24, 0xc1, 0x53
	copy(pkeys, "\xff\xff\x80\x01")
	pkeys[31] = 9 // the low byte of the sixteenth
	want := ibwire.Control{Prefix: 0xfe80 << 48, LID: 5, SMLID: 1, SMSL: 3, LMC: 1, State: hca.PortActive, MTU: 5, PKeys: [ibwire.PKeys]hca.PKey{0: 0xffff, 1: 0x8001, 15: 9}}
	if got := attributes(info, pkeys); got != want || !got.Valid() {
		t.Errorf("%+v, want %+v", got, want)
	}
	info[infoMTUSL] = 0
	if got := attributes(info, pkeys); got.MTU != defaultMTU || mtuBytes(got.MTU) != 2048 {
		t.Errorf("MTU %d of a port that is not configured, want the code of 2048", got.MTU)
	}
}

func TestChanges(t *testing.T) {
	up := ibwire.Control{Prefix: 1, LID: 2, SMLID: 1, State: hca.PortActive, MTU: 4, PKeys: [ibwire.PKeys]hca.PKey{0xffff}}
	const all = ibwire.PortActive | ibwire.LIDChange | ibwire.SMChange | ibwire.PKeyChange | ibwire.GIDChange
	for name, c := range map[string]struct {
		change func(*ibwire.Control)
		want   ibwire.Events
	}{
		"nothing":   {func(*ibwire.Control) {}, 0},
		"LID":       {func(c *ibwire.Control) { c.LID = 3 }, ibwire.LIDChange},
		"LMC":       {func(c *ibwire.Control) { c.LMC = 1 }, ibwire.LIDChange},
		"SM LID":    {func(c *ibwire.Control) { c.SMLID = 3 }, ibwire.SMChange},
		"SM SL":     {func(c *ibwire.Control) { c.SMSL = 3 }, ibwire.SMChange},
		"P_Key":     {func(c *ibwire.Control) { c.PKeys[3] = 1 }, ibwire.PKeyChange},
		"prefix":    {func(c *ibwire.Control) { c.Prefix = 2 }, ibwire.GIDChange},
		"link lost": {func(c *ibwire.Control) { c.State = hca.PortDown }, ibwire.PortErr},
	} {
		now := up
		c.change(&now)
		if got := changes(&up, &now); got != c.want {
			t.Errorf("%s: events %#x, want %#x", name, got, c.want)
		}
	}
	if got := changes(&ibwire.Control{}, &up); got != all {
		t.Errorf("a port that comes up: events %#x, want %#x", got, all)
	}
	down := up
	down.State = hca.PortInit
	if got := changes(&ibwire.Control{}, &down); got != all&^ibwire.PortActive {
		t.Errorf("a port that is not active: events %#x, want %#x", got, all&^ibwire.PortActive)
	}
}
