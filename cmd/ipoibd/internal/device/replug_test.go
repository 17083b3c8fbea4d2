package device

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/faults"
	"ipoibd/qprecovery"
)

// Reset and replug are one path: the users are notified, no verb of the device is called any
// more, and a device that comes back is started from scratch. A device that is gone is not
// reset.
func TestR21OnePath(t *testing.T) {
	for name, c := range map[string]struct {
		down, up func(*bench)
		resets   int
	}{
		"reset": {
			func(b *bench) { b.slot.inject(b.t, faults.Fault{Kind: faults.DeviceFatal}) },
			func(*bench) {}, 1,
		},
		"unplug and replug": {
			func(b *bench) { b.slot.isolate() },
			func(b *bench) { b.slot.plug(guidSame) }, 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, nil, func(b *bench) {
				s := b.View().Session
				s.Acquire("user")
				u := b.newUser(0)
				c.down(b)
				synctest.Wait()
				if _, err := s.AllocPD(); !errors.Is(err, hca.ErrIO) || u.held != nil || b.View().Session != nil {
					t.Errorf("not dropped at once: %v", err)
				}
				c.up(b)
				time.Sleep(time.Second)
				if b.slot.did().opens != 1 {
					t.Error("opened before all users released it")
				}
				s.Release("user")
				next := b.healthy(soon)
				synctest.Wait()
				if u.held != next || next.Instance != 2 || b.slot.did().resets != c.resets {
					t.Errorf("instance %d after %d resets", next.Instance, b.slot.did().resets)
				}
			})
		})
	}
}

// Service returns by itself only with the same device, whatever its index. Another device is
// reported once and not used, unless the configuration allows it.
func TestR22Identity(t *testing.T) {
	for name, c := range map[string]struct {
		allow, comes bool
		reports      int
	}{"left alone": {reports: 1}, "allowed": {allow: true, comes: true}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(cfg *Config) { cfg.AllowForeign = c.allow }, func(b *bench) {
				b.slot.unplug()
				synctest.Wait()
				b.slot.plug(guidOther)
				time.Sleep(time.Minute)
				if got := b.View().Session != nil; got != c.comes {
					t.Errorf("open: %v", got)
				}
				if n := b.notes(); len(n) != c.reports {
					t.Errorf("reported: %q", n)
				}
				if last := b.Status().LastError; !c.comes && (last == nil || !strings.HasPrefix(last.Error(), "another device appeared")) {
					t.Errorf("the status says %v", last)
				}
				b.slot.unplug()
				synctest.Wait()
				b.slot.plug(guidSame)
				b.healthy(time.Minute)
			})
		})
	}
}

// stale lists the device that was there first, whatever is plugged in.
type stale struct{ *slot }

func (s stale) List(context.Context) []qprecovery.Identity {
	return []qprecovery.Identity{{NodeGUID: guidSame, PortGUID: guidSame, SysImageGUID: guidSame, Index: 1, Name: "soft"}}
}

func (s stale) Watch(ctx context.Context) <-chan []qprecovery.Identity {
	lists := make(chan []qprecovery.Identity, 1)
	lists <- s.List(ctx)
	return lists
}

// A device that turns out to be another one only when it is open is closed again.
func TestR22OpenedAnother(t *testing.T) {
	bubble(t, func(c *Config) { c.List = stale{c.List.(*slot)} }, func(b *bench) {
		b.slot.set(func() { b.slot.guid = guidOther })
		b.slot.inject(t, faults.Fault{Kind: faults.DeviceFatal})
		time.Sleep(time.Minute)
		if v := b.View(); v.Session != nil || !errors.Is(v.Err, errForeign) {
			t.Errorf("%+v", v)
		}
		b.slot.set(func() { b.slot.guid = guidSame })
		b.healthy(time.Minute) // it is tried from time to time
	})
}

// The wait ends once, after its time, with a note to the operator, who can start again by
// hand.
func TestR23GiveUp(t *testing.T) {
	for name, after := range map[string]time.Duration{"default": 0, "configured": time.Minute} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(c *Config) { c.GiveUpAfter = after }, func(b *bench) {
				if after == 0 {
					after = qprecovery.DefaultGiveUpAfter
				}
				begin := time.Now()
				b.slot.unplug()
				v := b.await(time.Hour, func(v View) bool { return v.GaveUp })
				if took := time.Since(begin); took < after || took > after+time.Second || v.Session != nil || v.Err == nil {
					t.Errorf("given up after %s: %+v", took, v)
				}
				time.Sleep(24 * time.Hour)
				before := b.slot.did()
				b.slot.plug(guidSame)
				time.Sleep(24 * time.Hour)
				if b.slot.did() != before || len(b.notes()) != 1 || !b.View().GaveUp {
					t.Errorf("%+v, were %+v; words: %q", b.slot.did(), before, b.notes())
				}
				if err := b.Recover(b.t.Context()); err != nil {
					t.Fatal(err)
				}
				b.healthy(soon)
				b.wantSteps(rung(qprecovery.RungGiveUp, qprecovery.ReasonGaveUp), rung(qprecovery.RungWait, qprecovery.ReasonOperator))
			})
		})
	}
}

// Arrivals and removals are noticed at once where they are announced. Where they are not, the
// list is read again while the device is waited for.
func TestR24List(t *testing.T) {
	for name, c := range map[string]struct {
		mute   bool
		within time.Duration
	}{"announced": {false, soon}, "not announced": {true, 11 * time.Second}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, nil, func(b *bench) {
				b.slot.unplug()
				time.Sleep(time.Minute + time.Second)
				b.slot.set(func() { b.slot.mute = c.mute })
				b.slot.plug(guidSame)
				b.healthy(c.within)
			})
		})
	}
}

// A list that was requested before a change was announced is not used against that change: a
// device that came back meanwhile stays, and its removal is noticed. If the device fails before
// its removal is announced, it is reset, and only a list that is read after the reset counts. A
// list that was being read when the device came back is read again.
func TestR24LateList(t *testing.T) {
	const late = time.Second
	for name, c := range map[string]struct {
		leave  func(*slot)
		within time.Duration
	}{
		"announced":       {(*slot).isolate, soon},
		"may fail before": {(*slot).unplug, 2*late + soon},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, nil, func(b *bench) {
				b.slot.set(func() { b.slot.late = late })
				c.leave(b.slot)
				time.Sleep(100 * time.Millisecond)
				b.slot.plug(guidSame)
				back := b.healthy(c.within)
				time.Sleep(5 * time.Second)
				if now := b.healthy(soon); now.Instance != back.Instance {
					t.Errorf("instance %d after %d: it was closed", now.Instance, back.Instance)
				}
				c.leave(b.slot)
				time.Sleep(time.Second)
				if v := b.View(); v.Session != nil {
					t.Error("the removal was missed")
				}
				b.slot.plug(guidSame)
			})
		})
	}
}

// An opening that takes too long is abandoned, and the device is reset and opened again (R08). Its
// late answer has no effect.
func TestR19LateOpening(t *testing.T) {
	bubble(t, nil, func(b *bench) {
		b.slot.set(func() { b.slot.slow = 15 * time.Second })
		b.Ask(qprecovery.ReasonVerbFailed)
		time.Sleep(9 * time.Second)
		b.slot.set(func() { b.slot.slow = 0 })
		next := b.healthy(2 * time.Second)
		if d := b.slot.did(); d.opens != 3 || d.resets != 2 || next.Instance != 3 {
			t.Errorf("instance %d of %d openings, %d resets", next.Instance, d.opens, d.resets)
		}
		b.wantSteps(rung(qprecovery.RungDevice, qprecovery.ReasonVerbFailed))
		time.Sleep(time.Minute)
		if now := b.View().Session; now != next {
			t.Errorf("%v, %+v, want the same session", b.Status().State, now)
		}
	})
}

// A device that fails as soon as it is open is reset less and less often.
func TestR06FailingDeviceDoesNotSpin(t *testing.T) {
	bubble(t, nil, func(b *bench) {
		stop := make(chan struct{})
		defer close(stop)
		views, unsubscribe := b.Subscribe()
		defer unsubscribe()
		end := time.After(time.Hour)
		for {
			select {
			case <-views:
				if s := b.View().Session; s != nil {
					s.Fail(hca.ErrIO)
				}
				continue
			case <-end:
			}
			break
		}
		if b.slot.did().opens < 10 || b.slot.did().opens > 20 { // 3, then pauses of 10, 20, ... 300 s
			t.Errorf("opened %d times in an hour", b.slot.did().opens)
		}
	})
}
