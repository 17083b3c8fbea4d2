package hca_test

import (
	"encoding"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"ipoibd/hca"
)

// enumerations lists every enumeration with the names of its first and last value.
var enumerations = []struct {
	name        string
	count       int
	of          func(i int) fmt.Stringer
	first, last string
}{
	{"QPState", int(hca.NumQPState), func(i int) fmt.Stringer { return hca.QPState(i) }, "RESET", "ERR"},
	{"EventType", int(hca.NumEventType), func(i int) fmt.Stringer { return hca.EventType(i) }, "CQ_ERR", "WQ_FATAL"},
	{"WCStatus", int(hca.NumWCStatus), func(i int) fmt.Stringer { return hca.WCStatus(i) }, "SUCCESS", "TM_RNDV_INCOMPLETE"},
	{"PortState", int(hca.PortActiveDefer) + 1, func(i int) fmt.Stringer { return hca.PortState(i) }, "NOP", "ACTIVE_DEFER"},
	{"LinkLayer", int(hca.LinkLayerEthernet) + 1, func(i int) fmt.Stringer { return hca.LinkLayer(i) }, "Unspecified", "Ethernet"},
	{"GIDType", int(hca.GIDTypeRoCEv2) + 1, func(i int) fmt.Stringer { return hca.GIDType(i) }, "IB", "RoCE v2"},
	{"WCOpcode", int(hca.WCRecv) + 1, func(i int) fmt.Stringer { return hca.WCOpcode(i) }, "SEND", "RECV"},
	{"Transport", int(hca.TransportSoftware) + 1, func(i int) fmt.Stringer { return hca.Transport(i) }, "hardware", "software"},
}

// Every value has a unique name; the name of a value past the end contains its number.
func TestNamesAreTotal(t *testing.T) {
	for _, e := range enumerations {
		seen := map[string]bool{}
		for i := range e.count {
			s := e.of(i).String()
			if s == "" || seen[s] || strings.HasPrefix(s, "UNKNOWN") {
				t.Errorf("%s %d is named %q, want a unique name", e.name, i, s)
			}
			seen[s] = true
		}
		for _, i := range []int{e.count, 255} {
			if s := e.of(i).String(); s != fmt.Sprintf("UNKNOWN_%d", i) {
				t.Errorf("%s %d is named %q, want UNKNOWN_%d", e.name, i, s, i)
			}
		}
		if first, last := e.of(0).String(), e.of(e.count-1).String(); first != e.first || last != e.last {
			t.Errorf("%s: first value %s, last %s; want %s, %s", e.name, first, last, e.first, e.last)
		}
	}
}

// The values are equal to those of infiniband/verbs.h.
func TestValuesAreThoseOfVerbs(t *testing.T) {
	for _, tt := range []struct {
		name      string
		got, want int
	}{
		{"IBV_QPS_ERR", int(hca.QPErr), 6},
		{"IBV_QPS_SQE", int(hca.QPSQE), 5},
		{"IBV_PORT_ACTIVE", int(hca.PortActive), 4},
		{"IBV_LINK_LAYER_ETHERNET", int(hca.LinkLayerEthernet), 2},
		{"IBV_EVENT_DEVICE_FATAL", int(hca.EventDeviceFatal), 8},
		{"IBV_EVENT_PORT_ERR", int(hca.EventPortErr), 10},
		{"IBV_EVENT_CLIENT_REREGISTER", int(hca.EventClientReregister), 17},
		{"IBV_EVENT_GID_CHANGE", int(hca.EventGIDChange), 18},
		{"IBV_WC_LOC_PROT_ERR", int(hca.WCLocProtErr), 4},
		{"IBV_WC_WR_FLUSH_ERR", int(hca.WCWRFlushErr), 5},
		{"IBV_WC_GENERAL_ERR", int(hca.WCGeneralErr), 21},
		{"IBV_QP_STATE", int(hca.AttrState), 1},
		{"IBV_QP_QKEY", int(hca.AttrQKey), 64},
		{"IBV_QP_SQ_PSN", int(hca.AttrSQPSN), 65536},
	} {
		if tt.got != tt.want {
			t.Errorf("%s is %d, want %d", tt.name, tt.got, tt.want)
		}
	}
}

// text is the constraint that a value and its pointer marshal to and from text.
type text interface {
	comparable
	encoding.TextMarshaler
}

// roundTrip writes each value to JSON and reads it back.
func roundTrip[T text](t *testing.T, values ...T) {
	t.Helper()
	for _, v := range values {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		var back T
		if err := json.Unmarshal(b, &back); err != nil || back != v {
			t.Errorf("%v: %s comes back as %v, %v", v, b, back, err)
		}
	}
}

func TestTextRoundTrip(t *testing.T) {
	roundTrip(t, hca.PortNop, hca.PortActive, hca.PortActiveDefer)
	roundTrip(t, hca.LinkLayerUnspecified, hca.LinkLayerEthernet)
	roundTrip(t, hca.GIDTypeIB, hca.GIDTypeRoCEv1, hca.GIDTypeRoCEv2)
	roundTrip(t, hca.TransportHardware, hca.TransportSoftware)
	roundTrip(t, hca.QPReset, hca.QPRTS, hca.QPErr)
	roundTrip(t, hca.GUID{}, hca.GUID{0x02, 0x11, 0x22, 0xff, 0xfe, 0x33, 0x44, 0x55})
	roundTrip(t, gids...)
	roundTrip(t, hca.QPN(0), 0x123456)
	roundTrip(t, hca.PKey(1), hca.PKeyDefault)
	roundTrip(t, hca.QKey(0x0b1b), 0xffffffff)
}

func TestTextRefuses(t *testing.T) {
	for _, v := range []encoding.TextUnmarshaler{
		new(hca.PortState), new(hca.LinkLayer), new(hca.GIDType), new(hca.Transport), new(hca.QPState),
		new(hca.GUID), new(hca.GID), new(hca.QPN), new(hca.PKey), new(hca.QKey),
	} {
		for _, s := range []string{"", "no such", "UNKNOWN_9", "00:11", "zz", "0x100000000"} {
			if err := v.UnmarshalText([]byte(s)); err == nil {
				t.Errorf("%T takes %q as %v, want an error", v, s, v)
			}
		}
	}
}
