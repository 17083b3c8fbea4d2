package ibwire

import (
	"bytes"
	"testing"

	"ipoibd/hca"
)

const controlBytes = `
	[prefix] fe80000000000000 [LID] 0005 [SM_LID] 0001 [SM_SL] 02 [LMC] 01 [state] 04 [MTU] 05
	[events] 00020200
	[P_Keys] ffff 8001 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 7fff`

func control() Control {
	return Control{
		Prefix: 0xfe80 << 48, LID: 5, SMLID: 1, SMSL: 2, LMC: 1, State: hca.PortActive, MTU: 5,
		Events: PortActive | ClientReregister, PKeys: [PKeys]hca.PKey{0: 0xffff, 1: 0x8001, 15: 0x7fff},
	}
}

func TestControlBytes(t *testing.T) {
	want, c := unhex(t, controlBytes), control()
	if got := c.Append(nil); !bytes.Equal(got, want) {
		t.Errorf("% x, want\n% x", got, want)
	}
	for _, padding := range []int{0, 6} {
		var got Control
		if !got.Parse(append(want, make([]byte, padding)...)) || got != c {
			t.Errorf("parsed %+v, want %+v", got, c)
		}
	}
}

func TestControlTruncated(t *testing.T) {
	whole := unhex(t, controlBytes)
	for n := range whole {
		if new(Control).Parse(whole[:n]) {
			t.Errorf("%d of %d bytes are accepted", n, len(whole))
		}
	}
}

// Each field has its range.
func TestControlRanges(t *testing.T) {
	for name, spoil := range map[string]func(*Control){
		"LID of a group":    func(c *Control) { c.LID = FirstMulticast },
		"SM LID of a group": func(c *Control) { c.SMLID = Permissive },
		"SM SL":             func(c *Control) { c.SMSL = 16 },
		"LMC":               func(c *Control) { c.LMC = 8 },
		"no state":          func(c *Control) { c.State = hca.PortNop },
		"state":             func(c *Control) { c.State = hca.PortActiveDefer + 1 },
		"no MTU":            func(c *Control) { c.MTU = 0 },
		"MTU":               func(c *Control) { c.MTU = 6 },
	} {
		c := control()
		spoil(&c)
		if new(Control).Parse(c.Append(nil)) {
			t.Errorf("%s out of range: accepted", name)
		}
	}
	limits := Control{LID: FirstMulticast - 1, SMLID: FirstMulticast - 1, SMSL: 15, LMC: 7, State: hca.PortDown, MTU: 1}
	if !new(Control).Parse(limits.Append(nil)) {
		t.Errorf("%+v is not accepted", limits)
	}
}

// FuzzControl checks that what is accepted is in range and is written to the same bytes.
func FuzzControl(f *testing.F) {
	c := control()
	f.Add(c.Append(nil))
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		var c Control
		if !c.Parse(b) {
			return
		}
		if out := c.Append(nil); !c.Valid() || !bytes.Equal(out, b[:controlLen]) {
			t.Fatalf("% x is %+v, and written % x", b, c, out)
		}
	})
}
