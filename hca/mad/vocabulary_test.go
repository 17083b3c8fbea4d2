package mad_test

import (
	"slices"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/mad"
)

// The masks are those that Linux's IPoIB was seen to send.
func TestMasksOfTheKernel(t *testing.T) {
	for _, c := range []struct {
		name      string
		got, want mad.Mask
	}{
		{"broadcast group", mad.MaskJoinBroadcast, 0x10083},
		{"other group", mad.MaskJoin, 0x173f7},
		{"leave", mad.MaskLeave, 0x10003},
		{"path", mad.MaskPath, 0x340c},
	} {
		if c.got != c.want {
			t.Errorf("%s: %#x, want %#x", c.name, uint64(c.got), uint64(c.want))
		}
	}
}

// Each bit has the number of the specification's table.
func TestMaskBits(t *testing.T) {
	for name, bits := range map[string][]mad.Mask{
		"MCMemberRecord": {
			mad.MemberMGID, mad.MemberPortGID, mad.MemberQKey, mad.MemberMLID, mad.MemberMTUSelector, mad.MemberMTU,
			mad.MemberClass, mad.MemberPKey, mad.MemberRateSelector, mad.MemberRate, mad.MemberLifetimeSelector,
			mad.MemberLifetime, mad.MemberSL, mad.MemberFlowLabel, mad.MemberHopLimit, mad.MemberScope,
			mad.MemberJoinState, mad.MemberProxyJoin,
		},
		"PathRecord": {
			1, 2, mad.PathDGID, mad.PathSGID, mad.PathDLID, mad.PathSLID, mad.PathRaw, 1 << 7, mad.PathFlowLabel,
			mad.PathHopLimit, mad.PathClass, mad.PathReversible, mad.PathNumbPath, mad.PathPKey, mad.PathQoSClass,
			mad.PathSL, mad.PathMTUSelector, mad.PathMTU, mad.PathRateSelector, mad.PathRate,
			mad.PathLifetimeSelector, mad.PathLifetime, mad.PathPreference,
		},
	} {
		for i, bit := range bits {
			if bit != 1<<i {
				t.Errorf("%s: bit %d is %#x", name, i, uint64(bit))
			}
		}
	}
	if mad.PathServiceID != 3 {
		t.Errorf("service ID: %#x", uint64(mad.PathServiceID))
	}
}

func TestStatusStrings(t *testing.T) {
	for s, want := range map[mad.Status]string{
		mad.StatusOK:                      "ok",
		mad.StatusBusy:                    "busy (0x0001)",
		mad.StatusRedirect:                "redirect (0x0002)",
		mad.StatusBadVersion:              "unsupported version (0x0004)",
		mad.StatusBadMethod:               "unsupported method (0x0008)",
		mad.StatusBadMethodWithAttr:       "unsupported method for this attribute (0x000c)",
		mad.StatusBadField:                "invalid field (0x001c)",
		4 << 2:                            "unknown status (0x0010)",
		0x20:                              "unknown status (0x0020)",
		mad.StatusNoResources:             "no resources (0x0100)",
		mad.StatusRequestInvalid:          "request invalid (0x0200)",
		mad.StatusNoRecords:               "no records (0x0300)",
		mad.StatusTooManyRecords:          "too many records (0x0400)",
		mad.StatusInvalidGID:              "invalid GID (0x0500)",
		mad.StatusInsufficientComponents:  "insufficient components (0x0600)",
		mad.StatusDenied:                  "denied (0x0700)",
		0x0900:                            "unknown status (0x0900)",
		mad.StatusBusy | mad.StatusDenied: "busy, denied (0x0701)",
		mad.StatusRedirect | mad.StatusBadField | 1: "busy, redirect, invalid field (0x001f)",
	} {
		if got := s.String(); got != want {
			t.Errorf("%#04x: %q, want %q", uint16(s), got, want)
		}
	}
	if s := mad.StatusBusy | mad.StatusDenied; !s.Busy() || s.Redirected() || s.Code() != mad.StatusDenied {
		t.Errorf("%v: busy %v, redirected %v, code %v", s, s.Busy(), s.Redirected(), s.Code())
	}
}

func TestMethods(t *testing.T) {
	for m, want := range map[mad.Method]mad.Method{
		mad.MethodGet: mad.MethodGetResp, mad.MethodSet: mad.MethodGetResp,
		mad.MethodGetTable: mad.MethodGetTableResp, mad.MethodDelete: mad.MethodDeleteResp,
	} {
		if got := m.Response(); got != want {
			t.Errorf("%v is answered by %v, want %v", m, got, want)
		}
	}
}

func TestNames(t *testing.T) {
	var got []string
	for _, m := range []mad.Method{1, 2, 0x12, 0x15, 0x81, 0x92, 0x95, 6} {
		got = append(got, m.String())
	}
	for _, a := range []mad.Attribute{1, 0x35, 0x38, 3} {
		got = append(got, a.String())
	}
	want := []string{
		"Get", "Set", "GetTable", "Delete", "GetResp", "GetTableResp", "DeleteResp", "method 0x06",
		"ClassPortInfo", "PathRecord", "MCMemberRecord", "attribute 0x0003",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestMTUCodes(t *testing.T) {
	for code, want := range []hca.MTU{0, 256, 512, 1024, 2048, 4096, 0, 0} {
		c := mad.MTUCode(code)
		if c.MTU() != want {
			t.Errorf("code %d is %d, want %d", code, c.MTU(), want)
		}
		if want != 0 && mad.MTUCodeOf(want) != c {
			t.Errorf("%d has the code %d, want %d", want, mad.MTUCodeOf(want), code)
		}
	}
	if mad.MTUCode(255).MTU() != 0 || mad.MTUCodeOf(1500) != 0 || mad.MTUCodeOf(0) != 0 {
		t.Error("an invalid MTU has a code")
	}
}

// The codes in the order of their rates, which is not the order of the codes.
func TestRatesAreComparedByTable(t *testing.T) {
	order := []mad.Rate{0, 2, 5, 3, 11, 6, 15, 19, 4, 7, 20, 12, 8, 9, 16, 13, 10, 14, 17, 18, 21, 22, 23, 24, 25}
	if !slices.IsSortedFunc(order, mad.Rate.Compare) {
		t.Errorf("%v is not in order", order)
	}
	for i, r := range order[1:] {
		if !r.Known() || r.Compare(order[i]) != 1 || order[i].Compare(r) != -1 || r.Compare(r) != 0 {
			t.Errorf("%v is not above %v", r, order[i])
		}
	}
	for _, r := range []mad.Rate{0, 1, 26, 63, 255} {
		if r.Known() || r.Gbps() != 0 {
			t.Errorf("%v is known", r)
		}
	}
	for r, want := range map[mad.Rate]string{2: "2.5 Gbit/s", 16: "100 Gbit/s", 1: "rate code 1"} {
		if r.String() != want {
			t.Errorf("%q, want %q", r, want)
		}
	}
}

func TestTimeCodes(t *testing.T) {
	for code, want := range map[mad.TimeCode]time.Duration{
		0: 4096 * time.Nanosecond, 16: 268435456 * time.Nanosecond, 18: 1073741824 * time.Nanosecond,
		50: 4096 << 50, 63: 4096 << 50, 255: 4096 << 50,
	} {
		if got := code.Duration(); got != want {
			t.Errorf("code %d is %v, want %v", code, got, want)
		}
	}
}

// What OpenSM 3.3.23 was seen to answer: capability 0x2602, then 0x0016bd10.
func TestClassPortInfoOfOpenSM(t *testing.T) {
	data := make([]byte, mad.DataLen)
	copy(data, unhex(t, "01 02 26 02 00 16 bd 10"))
	var c mad.ClassPortInfo
	err := c.Parse(data)
	if err != nil || c.RespTime != 16 || c.Capability != 0x2602 || c.Capability2&mad.CapSendOnlyFull == 0 {
		t.Errorf("%+v, %v", c, err)
	}
}
