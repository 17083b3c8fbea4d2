package mad_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"ipoibd/hca"
	"ipoibd/hca/mad"
)

// codec is what the header and every attribute have. P is the pointer to T.
type codec[T any] interface {
	*T
	Put(dst []byte)
	Parse(src []byte) error
}

// unhex decodes bytes written with spaces between them.
func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// field sets one field, which must show in the bytes at one offset, and nowhere else.
type field[T any] struct {
	name  string
	value T
	at    int
	bytes string
}

// checkFields encodes each value over a buffer of other contents, and decodes it again. Size is the length of the
// encoding, in a buffer of room bytes, whose bytes are otherwise those of the zero value.
func checkFields[T comparable, P codec[T]](t *testing.T, size, room int, fields []field[T]) {
	zero := make([]byte, room)
	P(new(T)).Put(zero)
	for _, f := range fields {
		t.Run(f.name, func(t *testing.T) {
			want := bytes.Clone(zero)
			copy(want[f.at:], unhex(t, f.bytes))
			got := bytes.Repeat([]byte{0xa5}, room)
			P(&f.value).Put(got)
			if !bytes.Equal(got[:size], want[:size]) {
				t.Errorf("put\n% x, want\n% x", got[:size], want[:size])
			}
			if rest := bytes.Trim(got[size:], "\xa5"); len(rest) > 0 {
				t.Errorf("also wrote behind the first %d bytes: % x", size, rest)
			}
			var back T
			if err := P(&back).Parse(want); err != nil || back != f.value {
				t.Errorf("parsed %+v, %v, want %+v", back, err, f.value)
			}
		})
	}
}

func gid(first, last byte) (g hca.GID) {
	g[0], g[15] = first, last
	return g
}

const (
	gidBytes  = "fe 00 00 00 00 00 00 00 00 00 00 00 00 00 00 07"
	mgidBytes = "ff 00 00 00 00 00 00 00 00 00 00 00 00 00 00 07"
)

func TestHeaderBytes(t *testing.T) {
	checkFields(t, 24, mad.Len, []field[mad.Header]{
		{"zero", mad.Header{}, 0, "01"},
		{"class", mad.Header{Class: 3}, 1, "03"},
		{"class version", mad.Header{ClassVersion: 2}, 2, "02"},
		{"method", mad.Header{Method: mad.MethodGetTableResp}, 3, "92"},
		{"status", mad.Header{Status: mad.StatusInsufficientComponents}, 4, "06 00"},
		{"transaction", mad.Header{TID: 0x0102030405060708}, 8, "01 02 03 04 05 06 07 08"},
		{"attribute", mad.Header{Attribute: mad.AttrMCMemberRecord}, 16, "00 38"},
		{"modifier", mad.Header{Modifier: 0x01020304}, 20, "01 02 03 04"},
	})
}

func TestSABytes(t *testing.T) {
	request := func(change func(*mad.SA)) mad.SA {
		h := mad.NewRequest(mad.MethodSet, mad.AttrMCMemberRecord, 9, 0)
		change(&h)
		return h
	}
	const head = "01 03 02 02 00 00 00 00 00 00 00 00 00 00 00 09 00 38 00 00 00 00 00 00" +
		" 00 00 00 00 00 00 00 00 00 00 00 00 "
	const noKey = "00 00 00 00 00 00 00 00 "
	checkFields(t, mad.DataOffset, mad.Len, []field[mad.SA]{
		{"request", request(func(*mad.SA) {}), 0, head},
		{"key", request(func(h *mad.SA) { h.SMKey = 0x0102030405060708 }), 0, head + "01 02 03 04 05 06 07 08"},
		{"attribute offset", request(func(h *mad.SA) { h.AttributeOffset = 0x0708 }), 0, head + noKey + "07 08"},
		{
			"mask", request(func(h *mad.SA) { h.Mask = 0x0102030405060708 }), 0,
			head + noKey + "00 00 00 00 01 02 03 04 05 06 07 08",
		},
	})
}

func TestClassPortInfoBytes(t *testing.T) {
	type info = mad.ClassPortInfo
	checkFields(t, 72, mad.DataLen, []field[info]{
		{"zero", info{}, 0, "00"},
		{"base version", info{BaseVersion: 1}, 0, "01"},
		{"class version", info{ClassVersion: 2}, 1, "02"},
		{"capability", info{Capability: 0x2602}, 2, "26 02"},
		{"capability 2", info{Capability2: 1<<27 - 1}, 4, "ff ff ff e0"},
		{"send-only", info{Capability2: mad.CapSendOnlyFull}, 4, "00 02 00 00"},
		{"response time", info{RespTime: 31}, 7, "1f"},
		{"redirect GID", info{Redirect: mad.Redirect{GID: gid(0xfe, 7)}}, 8, gidBytes},
		{"redirect LID", info{Redirect: mad.Redirect{LID: 0x0102}}, 28, "01 02"},
		{"redirect P_Key", info{Redirect: mad.Redirect{PKey: 0x8001}}, 30, "80 01"},
		{"redirect QPN", info{Redirect: mad.Redirect{QPN: 0xabcdef}}, 33, "ab cd ef"},
		{"redirect Q_Key", info{Redirect: mad.Redirect{QKey: mad.QKeyGSI}}, 36, "80 01 00 00"},
	})
}

func TestMCMemberBytes(t *testing.T) {
	type member = mad.MCMember
	checkFields(t, 52, mad.DataLen, []field[member]{
		{"zero", member{}, 0, "00"},
		{"MGID", member{MGID: gid(0xff, 7)}, 0, mgidBytes},
		{"port GID", member{PortGID: gid(0xfe, 7)}, 16, gidBytes},
		{"Q_Key", member{QKey: 0x01020304}, 32, "01 02 03 04"},
		{"MLID", member{MLID: 0xc123}, 36, "c1 23"},
		{"MTU", member{MTU: mad.Selected[mad.MTUCode]{By: mad.SelectExactly, Value: 4}}, 38, "84"},
		{"class", member{Routing: mad.Routing{Class: 0xfe}}, 39, "fe"},
		{"P_Key", member{PKey: 0x8001}, 40, "80 01"},
		{"rate", member{Rate: mad.Selected[mad.Rate]{By: mad.SelectLess, Value: 0x3f}}, 42, "7f"},
		{"lifetime", member{Lifetime: mad.Selected[mad.TimeCode]{By: mad.SelectLargest, Value: 18}}, 43, "d2"},
		{"SL", member{SL: 15}, 44, "f0 00 00 00"},
		{"flow label", member{Routing: mad.Routing{FlowLabel: 0xabcde}}, 44, "0a bc de 00"},
		{"hop limit", member{Routing: mad.Routing{HopLimit: 0xff}}, 47, "ff"},
		{"scope", member{Scope: 2}, 48, "20"},
		{"join state", member{JoinState: mad.JoinSendOnlyFull}, 48, "08"},
		{"proxy join", member{ProxyJoin: true}, 49, "80"},
	})
}

func TestPathBytes(t *testing.T) {
	type path = mad.Path
	checkFields(t, 64, mad.DataLen, []field[path]{
		{"zero", path{}, 0, "00"},
		{"service", path{ServiceID: 0x0102030405060708}, 0, "01 02 03 04 05 06 07 08"},
		{"DGID", path{DGID: gid(0xfe, 7)}, 8, gidBytes},
		{"SGID", path{SGID: gid(0xfe, 7)}, 24, gidBytes},
		{"DLID", path{DLID: 0x0102}, 40, "01 02"},
		{"SLID", path{SLID: 0x0102}, 42, "01 02"},
		{"raw", path{Raw: true}, 44, "80"},
		{"flow label", path{Routing: mad.Routing{FlowLabel: 0xabcde}}, 44, "0a bc de 00"},
		{"hop limit", path{Routing: mad.Routing{HopLimit: 64}}, 47, "40"},
		{"class", path{Routing: mad.Routing{Class: 0xfe}}, 48, "fe"},
		{"reversible", path{Reversible: true, NumbPath: 1}, 49, "81"},
		{"paths", path{NumbPath: 127}, 49, "7f"},
		{"P_Key", path{PKey: 0x8001}, 50, "80 01"},
		{"QoS class", path{QoSClass: 0xabc}, 52, "ab c0"},
		{"SL", path{SL: 15}, 53, "0f"},
		{"MTU", path{MTU: mad.Selected[mad.MTUCode]{By: mad.SelectExactly, Value: 4}}, 54, "84"},
		{"rate", path{Rate: mad.Selected[mad.Rate]{By: mad.SelectExactly, Value: 3}}, 55, "83"},
		{"lifetime", path{Lifetime: mad.Selected[mad.TimeCode]{By: mad.SelectExactly, Value: 18}}, 56, "92"},
		{"preference", path{Preference: 0xff}, 57, "ff"},
	})
}

// Values that are too large do not change neighbouring fields.
func TestValuesAreTruncated(t *testing.T) {
	got := make([]byte, mad.DataLen)
	(&mad.MCMember{Routing: mad.Routing{FlowLabel: 0xfff00001}, SL: 0x12, JoinState: 0xf1, Scope: 0x32}).Put(got)
	if want := unhex(t, "20 00 01 00 21"); !bytes.Equal(got[44:49], want) {
		t.Errorf("MCMemberRecord: % x, want % x", got[44:49], want)
	}
	clear(got)
	(&mad.Path{NumbPath: 0xff, SL: 0xff, MTU: mad.Selected[mad.MTUCode]{Value: 0xff}}).Put(got)
	if want := unhex(t, "7f 00 00 00 0f 3f"); !bytes.Equal(got[49:55], want) {
		t.Errorf("PathRecord: % x, want % x", got[49:55], want)
	}
	clear(got)
	(&mad.ClassPortInfo{RespTime: 0xff, Redirect: mad.Redirect{QPN: 0xff000001}}).Put(got)
	if got[6] != 0 || got[7] != 31 || got[32] != 0 || got[35] != 1 {
		t.Errorf("ClassPortInfo: % x", got[:40])
	}
}

// truncated parses every prefix of a valid encoding that is too short, and expects an error that names the length.
func truncated(t *testing.T, what string, size int, parse func([]byte) error) {
	buf := make([]byte, mad.Len)
	for n := range size {
		var field mad.FieldError
		err := parse(buf[:n])
		if !errors.As(err, &field) || !strings.HasSuffix(string(field), "length") || !errors.Is(err, hca.ErrInvalid) {
			t.Errorf("%s with %d bytes of %d: %v, want an error of its length", what, n, size, err)
		}
	}
	if err := parse(buf[:size]); err != nil && strings.HasSuffix(err.Error(), "length") {
		t.Errorf("%s with %d bytes: %v", what, size, err)
	}
}

func TestTruncations(t *testing.T) {
	truncated(t, "header", mad.Len, new(mad.Header).Parse)
	truncated(t, "SA header", mad.Len, new(mad.SA).Parse)
	truncated(t, "ClassPortInfo", 72, new(mad.ClassPortInfo).Parse)
	truncated(t, "MCMemberRecord", 52, new(mad.MCMember).Parse)
	truncated(t, "PathRecord", 64, new(mad.Path).Parse)
	if err := new(mad.Header).Parse(make([]byte, mad.Len+1)); !errors.Is(err, mad.FieldError("length")) {
		t.Errorf("header of a MAD that is too long: %v", err)
	}
}

func TestErrorsNameTheField(t *testing.T) {
	for _, c := range []struct {
		at   int
		to   byte
		want mad.FieldError
	}{{0, 2, "BaseVersion"}, {1, 1, "MgmtClass"}, {2, 1, "ClassVersion"}, {26, 1, "RMPPFlags"}} {
		buf := make([]byte, mad.Len)
		h := mad.NewRequest(mad.MethodGet, mad.AttrPathRecord, 1, 0)
		h.Put(buf)
		buf[c.at] = c.to
		if err := new(mad.SA).Parse(buf); !errors.Is(err, c.want) {
			t.Errorf("byte %d is %d: %v, want %v", c.at, c.to, err, c.want)
		}
	}
	if got := mad.FieldError("PathRecord.DLID").Error(); got != "invalid MAD: PathRecord.DLID" {
		t.Error(got)
	}
}

var (
	joined = mad.MCMember{
		MGID: gid(0xff, 7), MLID: 0xc000, MTU: mad.Selected[mad.MTUCode]{Value: 4},
		Rate: mad.Selected[mad.Rate]{Value: 3}, JoinState: mad.JoinFull,
	}
	found = mad.Path{DLID: 1, SLID: 2, MTU: mad.Selected[mad.MTUCode]{Value: 4}, Rate: mad.Selected[mad.Rate]{Value: 3}}
)

func TestCheckMCMember(t *testing.T) {
	for _, c := range []struct {
		change func(*mad.MCMember)
		want   error
	}{
		{func(*mad.MCMember) {}, nil},
		{func(r *mad.MCMember) { r.MLID = 0xfffe }, nil},
		{func(r *mad.MCMember) { r.MGID[0] = 0xfe }, mad.FieldError("MCMemberRecord.MGID")},
		{func(r *mad.MCMember) { r.MLID = 0xbfff }, mad.FieldError("MCMemberRecord.MLID")},
		{func(r *mad.MCMember) { r.MLID = 0xffff }, mad.FieldError("MCMemberRecord.MLID")},
		{func(r *mad.MCMember) { r.MTU.Value = 0 }, mad.FieldError("MCMemberRecord.MTU")},
		{func(r *mad.MCMember) { r.MTU.Value = 6 }, mad.FieldError("MCMemberRecord.MTU")},
		{func(r *mad.MCMember) { r.Rate.Value = 1 }, mad.FieldError("MCMemberRecord.Rate")},
		{func(r *mad.MCMember) { r.JoinState = 0 }, mad.FieldError("MCMemberRecord.JoinState")},
	} {
		r := joined
		c.change(&r)
		if err := r.Check(); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v, want %v", r, err, c.want)
		}
	}
}

func TestCheckPath(t *testing.T) {
	for _, c := range []struct {
		change func(*mad.Path)
		want   error
	}{
		{func(*mad.Path) {}, nil},
		{func(r *mad.Path) { r.DLID = 0xbfff }, nil},
		{func(r *mad.Path) { r.DLID = 0 }, mad.FieldError("PathRecord.DLID")},
		{func(r *mad.Path) { r.DLID = 0xc000 }, mad.FieldError("PathRecord.DLID")},
		{func(r *mad.Path) { r.SLID = 0 }, mad.FieldError("PathRecord.SLID")},
		{func(r *mad.Path) { r.SLID = 0xc000 }, mad.FieldError("PathRecord.SLID")},
		{func(r *mad.Path) { r.MTU.Value = 63 }, mad.FieldError("PathRecord.MTU")},
		{func(r *mad.Path) { r.Rate.Value = 26 }, mad.FieldError("PathRecord.Rate")},
	} {
		r := found
		c.change(&r)
		if err := r.Check(); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v, want %v", r, err, c.want)
		}
	}
}

// roundTrip encodes any value: its encoding, decoded and encoded again, gives the same bytes and the same value.
func roundTrip[T comparable, P codec[T]](t *rapid.T, room int, bytesOf []byte, check bool) {
	var first, second T
	if err := P(&first).Parse(bytesOf); err != nil {
		if check {
			t.Fatal(err)
		}
		return
	}
	buf := make([]byte, room)
	P(&first).Put(buf)
	if err := P(&second).Parse(buf); err != nil || first != second {
		t.Fatalf("%+v became %+v, %v", first, second, err)
	}
}

// Any data that an attribute can be parsed from survives, and so does any header.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		data := rapid.SliceOfN(rapid.Byte(), mad.DataLen, mad.DataLen).Draw(t, "data")
		roundTrip[mad.ClassPortInfo](t, mad.DataLen, data, true)
		roundTrip[mad.MCMember](t, mad.DataLen, data, true)
		roundTrip[mad.Path](t, mad.DataLen, data, true)
		whole := rapid.SliceOfN(rapid.Byte(), mad.Len, mad.Len).Draw(t, "MAD")
		roundTrip[mad.SA](t, mad.Len, whole, false)
		whole[0], whole[1], whole[2], whole[26] = 1, mad.ClassSubnAdm, mad.VersionSubnAdm, 0
		roundTrip[mad.Header](t, mad.Len, whole, true)
		roundTrip[mad.SA](t, mad.Len, whole, true)
	})
}

func TestAllocations(t *testing.T) {
	buf := make([]byte, mad.Len)
	data := buf[mad.DataOffset:]
	var (
		h mad.SA
		c mad.ClassPortInfo
		m mad.MCMember
		p mad.Path
	)
	if n := testing.AllocsPerRun(100, func() {
		h = mad.NewRequest(mad.MethodSet, mad.AttrMCMemberRecord, 1, mad.MaskJoin)
		h.Put(buf)
		_ = h.Parse(buf)
		_ = h.Parse(buf[1:])
		c.Put(data)
		_ = c.Parse(data)
		m.Put(data)
		_ = m.Parse(data)
		_ = m.Check()
		p.Put(data)
		_ = p.Parse(data)
		_ = p.Check()
		_ = p.Parse(data[:9])
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}
