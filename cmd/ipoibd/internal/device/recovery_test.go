package device

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/faults"
	"ipoibd/hca/guard"
	"ipoibd/qprecovery"
)

// soon, in virtual time, is longer than closePatience.
const soon = 2 * closePatience

// A device that fails again and again is paused. The note and the status say for how long.
func TestR29PauseIsTold(t *testing.T) {
	bubble(t, nil, func(b *bench) {
		for b.Status().State == qprecovery.DeviceHealthy {
			b.slot.inject(t, faults.Fault{Kind: faults.DeviceFatal})
			time.Sleep(soon)
		}
		s := b.Status()
		if left := time.Until(s.NextTry).Round(time.Second); s.State != qprecovery.DevicePausing || left != 10*time.Second {
			t.Errorf("%v, next try in %v", s.State, left)
		}
		if want := []string{"the device keeps failing after each reset; waiting 10s before reopening it ('ipoibd recover' reopens it now)"}; !slices.Equal(b.notes(), want) {
			t.Errorf("notes %q, want %q", b.notes(), want)
		}
		time.Sleep(time.Until(s.NextTry) + soon)
		if s := b.Status(); s.State != qprecovery.DeviceHealthy || !s.NextTry.IsZero() || !s.GivesUp.IsZero() {
			t.Errorf("%+v", s)
		}
	})
}

// Each trigger of a device reset is named in the history, and leads to one recovery.
func TestR25Triggers(t *testing.T) {
	device := func(why qprecovery.Reason) []qprecovery.Step {
		return []qprecovery.Step{rung(qprecovery.RungDevice, why)}
	}
	for name, c := range map[string]struct {
		happen func(*bench)
		want   []qprecovery.Step
	}{
		"fatal event": {
			func(b *bench) { b.slot.inject(b.t, faults.Fault{Kind: faults.DeviceFatal}) },
			device(qprecovery.ReasonDeviceError),
		},
		"EIO of a verb": {
			func(b *bench) { b.View().Session.Fail(hca.ErrIO) },
			device(qprecovery.ReasonDeviceError),
		},
		"unresponsive": {
			func(b *bench) {
				b.slot.inject(b.t, faults.Fault{Kind: faults.VerbHangs, Verb: "query_port"})
				b.slot.inject(b.t, faults.Fault{Kind: faults.VerbHangs, Verb: "alloc_pd"})
				b.slot.port.SetUp(false)
				time.Sleep(guard.DefaultHostTimeout + verbTimeout)
			},
			device(qprecovery.ReasonVerbStuck),
		},
		"asked for": {
			func(b *bench) { b.Ask(qprecovery.ReasonVerbFailed) },
			device(qprecovery.ReasonVerbFailed),
		},
		"operator": {
			func(b *bench) {
				if err := b.Reset(b.t.Context()); err != nil {
					b.t.Error(err)
				}
			},
			device(qprecovery.ReasonOperator),
		},
		"removal of the driver": {
			func(b *bench) { // which is known before the error of the device
				b.slot.isolate()
				synctest.Wait()
				b.slot.port.Remove()
				synctest.Wait()
				b.slot.plug(guidSame)
			},
			[]qprecovery.Step{rung(qprecovery.RungWait, qprecovery.ReasonRemoved)},
		},
		"isolation by an administrator": {
			func(b *bench) {
				b.slot.isolate()
				synctest.Wait()
				b.slot.plug(guidSame)
			},
			[]qprecovery.Step{rung(qprecovery.RungWait, qprecovery.ReasonRemoved)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, nil, func(b *bench) {
				c.happen(b)
				b.await(soon, func(v View) bool { return v.Session != nil && v.Session.Instance == 2 })
				b.wantSteps(c.want...)
				if n := len(b.Status().History); n != 1 || b.slot.did().opens != 2 {
					t.Errorf("%d recoveries, opened %d times", n, b.slot.did().opens)
				}
			})
		})
	}
}

// Errors of ports, queue pairs and CQs reach their users, and reset nothing.
func TestR07SmallerErrorsResetNothing(t *testing.T) {
	for _, k := range []faults.Kind{faults.PortDown, faults.PortUp, faults.GIDChange, faults.PKeyChange} {
		t.Run(k.String(), func(t *testing.T) {
			bubble(t, nil, func(b *bench) {
				s := b.View().Session
				b.slot.inject(t, faults.Fault{Kind: k})
				time.Sleep(time.Minute)
				if b.View().Session != s || len(b.Status().History) != 0 {
					t.Errorf("%+v", b.Status())
				}
			})
		})
	}
}

// The view shows the port down and up, while the device stays open.
func TestR25PortError(t *testing.T) {
	bubble(t, nil, func(b *bench) {
		s := b.View().Session
		b.slot.inject(t, faults.Fault{Kind: faults.PortDown})
		v := b.await(soon, func(v View) bool { return v.Ports[0].State == hca.PortDown })
		b.slot.inject(t, faults.Fault{Kind: faults.PortUp})
		b.await(soon, func(v View) bool { return v.Ports[0].State == hca.PortActive })
		if v.Session != s || b.View().Session != s {
			t.Error("the device was reset")
		}
	})
}

// Events of a CQ reach its watchers, until they stop.
func TestWatch(t *testing.T) {
	bubble(t, nil, func(b *bench) {
		s := b.View().Session
		cq, err := s.CreateCQ(hca.CQSpec{Entries: 4})
		if err != nil {
			t.Fatal(err)
		}
		defer cq.Close()
		var got []hca.EventType
		stop := s.Watch(cq.ID(), func(ev hca.AsyncEvent) { got = append(got, ev.Type) })
		other := s.Watch(hca.ObjectID{Kind: hca.KindCQ, Num: 99}, func(hca.AsyncEvent) { t.Error("an event of another CQ") })
		defer other()
		s.deliver(hca.AsyncEvent{Type: hca.EventCQErr, On: cq.ID()})
		stop()
		stop()
		s.deliver(hca.AsyncEvent{Type: hca.EventCQErr, On: cq.ID()})
		if len(got) != 1 || got[0] != hca.EventCQErr {
			t.Errorf("got %v", got)
		}
	})
}

// A reset removes the session from the view at once, but the HCA is closed only when all
// users have released it. An idle user is notified like the others, and a newcomer finds no
// session.
func TestR13EveryUserIsTold(t *testing.T) {
	bubble(t, nil, func(b *bench) {
		idle := b.newUser(0)
		s := b.View().Session
		if !s.Acquire("user") {
			t.Fatal("cannot use an open session")
		}
		b.Ask(qprecovery.ReasonVerbFailed)
		synctest.Wait()
		newcomer := b.newUser(0)
		if idle.held != nil || newcomer.held != nil || s.Acquire("user") {
			t.Error("used while a reset is pending")
		}
		time.Sleep(qprecovery.DefaultGrace - time.Second)
		if b.slot.did().opens != 1 {
			t.Error("opened again while the old session is in use")
		}
		s.Release("user")
		next := b.healthy(soon)
		synctest.Wait()
		if idle.held != next || newcomer.held != next || next.Instance != 2 {
			t.Errorf("users hold %v and %v, want %v", idle.held, newcomer.held, next)
		}
	})
}

// A user that never releases the session delays the reset by the grace period. Then its
// session is a zombie, and its late release has no effect.
func TestR14ResetWithoutSilentUser(t *testing.T) {
	for name, grace := range map[string]time.Duration{"default": 0, "configured": 5 * time.Second} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(c *Config) { c.Grace = grace }, func(b *bench) {
				good := b.newUser(time.Second)
				s := b.View().Session
				s.Acquire("ib7")
				pd, err := s.AllocPD()
				if err != nil {
					t.Fatal(err)
				}
				begin := time.Now()
				if err := b.Reset(b.t.Context()); err != nil { // which does not fail the device first
					t.Fatal(err)
				}
				next := b.healthy(2 * qprecovery.DefaultGrace)
				if took := time.Since(begin); took < b.cfg.Grace || took > b.cfg.Grace+time.Second {
					t.Errorf("reset after %s", took)
				}
				synctest.Wait()
				if want := []string{"the device was not released in time by ib7; continuing without waiting"}; !slices.Equal(b.notes(), want) {
					t.Errorf("notes %q, want %q", b.notes(), want)
				}
				if good.held != next {
					t.Error("the others do not go on")
				}
				if _, err := pd.AllocMR(64, 0); !errors.Is(err, hca.ErrIO) {
					t.Errorf("the zombie answers %v", err)
				}
				for range 2 {
					if err := pd.Close(); err != nil {
						t.Errorf("close a zombie: %v", err)
					}
				}
				s.Release("ib7")
				time.Sleep(time.Hour)
				if b.View().Session != next || len(b.Status().History) != 1 {
					t.Error("the zombie's release was heard")
				}
			})
		})
	}
}

// A slow user that needs less than the grace period is waited for, and gets no zombie.
func TestR14SlowUserIsWaitedFor(t *testing.T) {
	bubble(t, nil, func(b *bench) {
		slow := b.newUser(2 * time.Second)
		begin := time.Now()
		if err := b.Reset(b.t.Context()); err != nil {
			t.Fatal(err)
		}
		b.healthy(2*time.Second + soon)
		synctest.Wait()
		if took := time.Since(begin); took < 2*time.Second || len(slow.seen) != 2 {
			t.Errorf("reset after %s; the user saw %v", took, slow.seen)
		}
	})
}

// A command without effect returns an error that names the reason.
func TestR29OrdersWithoutEffectSaySo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		b.run()
		defer b.stop()
		b.healthy(time.Minute)
		ctx := t.Context()
		want := func(what string, err, want error) {
			t.Helper()
			if !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", what, err, want)
			}
		}
		want("recover an open device", b.Recover(ctx), ErrOpen)
		want("resume an open device", b.Resume(ctx), ErrNotSuspended)
		b.slot.set(func() { b.slot.slow = time.Second })
		want("reset", b.Reset(ctx), nil)
		time.Sleep(time.Second / 2)
		want("recover during a reset", b.Recover(ctx), ErrUnderWay)
		want("reset during a reset", b.Reset(ctx), nil)
		b.healthy(time.Minute)
		b.slot.set(func() { b.slot.slow = 0 })
		want("suspend", b.Suspend(ctx), nil)
		want("suspend again", b.Suspend(ctx), nil)
		want("recover while suspended", b.Recover(ctx), ErrSuspended)
		want("resume", b.Resume(ctx), nil)
		b.healthy(time.Minute)
		b.slot.plug(hca.GUID{})
		b.await(time.Hour, func(v View) bool { return v.GaveUp })
		want("suspend a device that was given up", b.Suspend(ctx), ErrGivenUp)
		want("recover it", b.Recover(ctx), nil)
	})
}

// Many requests at once are one reset.
func TestR15RequestsAreOne(t *testing.T) {
	bubble(t, nil, func(b *bench) {
		b.newUser(time.Second)
		for range 10 {
			b.Ask(qprecovery.ReasonVerbFailed)
			synctest.Wait()
			if err := b.Reset(b.t.Context()); err != nil {
				t.Error(err)
			}
		}
		b.slot.inject(t, faults.Fault{Kind: faults.DeviceFatal})
		b.healthy(time.Second + soon)
		time.Sleep(time.Hour)
		if b.slot.did().resets != 1 || b.Opens() != 2 || len(b.Status().History) != 1 {
			t.Errorf("%d resets, %d sessions", b.slot.did().resets, b.Opens())
		}
	})
}

// From the fatal event on the session is in error state, before its users release it.
func TestR18FatalFailsTheSession(t *testing.T) {
	bubble(t, nil, func(b *bench) {
		s := b.View().Session
		s.Acquire("user")
		b.slot.inject(t, faults.Fault{Kind: faults.DeviceFatal})
		synctest.Wait()
		if _, err := s.AllocPD(); !errors.Is(err, hca.ErrIO) {
			t.Errorf("AllocPD: %v", err)
		}
		if b.View().Session != nil || b.slot.did().opens != 1 {
			t.Error("the next instance does not wait for the user")
		}
		s.Release("user")
		b.healthy(soon)
	})
}

// A verb that hangs in the device does not delay the reset, and returns because of it.
func TestR19HungVerbReturnsByReset(t *testing.T) {
	for _, verb := range []string{"query_port", "alloc_pd", "close_device"} {
		t.Run(verb, func(t *testing.T) {
			bubble(t, nil, func(b *bench) {
				s := b.View().Session
				s.Acquire("user")
				b.slot.inject(t, faults.Fault{Kind: faults.VerbHangs, Verb: verb})
				returned := make(chan error, 1)
				go func() {
					pd, err := s.AllocPD()
					if err == nil {
						err = pd.Close()
					}
					returned <- err
				}()
				b.slot.port.SetUp(false) // has the ports queried
				time.Sleep(verbTimeout / 2)
				b.Ask(qprecovery.ReasonVerbStuck)
				if err := <-returned; err != nil && !errors.Is(err, hca.ErrIO) {
					t.Errorf("AllocPD: %v", err)
				}
				s.Release("user")
				if next := b.healthy(soon + closePatience); next.Instance != 2 {
					t.Errorf("instance %d", next.Instance)
				}
			})
		})
	}
}

// The session of an earlier instance does not affect the next one, neither by late faults nor
// by its ports or users.
func TestR20EarlierInstance(t *testing.T) {
	bubble(t, nil, func(b *bench) {
		old := b.View().Session
		b.Ask(qprecovery.ReasonVerbFailed)
		next := b.healthy(soon)
		stale := b.Status().Counts.Stale
		b.onRun(func(o *owner) {
			o.step(qprecovery.Fault{Gen: uint32(old.Instance), Class: qprecovery.ClassDeviceError})
			o.checked(old, uint32(old.Instance), nil, nil)
		})
		if v := b.View(); v.Session != next || len(v.Ports) != 1 || old.Acquire("user") {
			t.Errorf("%+v", v)
		}
		if got := b.Status().Counts.Stale; got != stale+2 {
			t.Errorf("%d stale events, were %d, want 2 more", got, stale)
		}
	})
}

// Two devices do not affect each other.
func TestR28DevicesAreApart(t *testing.T) {
	bubble(t, nil, func(a *bench) {
		b := newBench(t, nil)
		b.run()
		defer b.stop()
		before := b.View().Session
		a.slot.inject(t, faults.Fault{Kind: faults.DeviceFatal})
		a.await(soon, func(v View) bool { return v.Session != nil && v.Session.Instance == 2 })
		if b.View().Session != before || b.slot.did().resets != 0 || len(b.Status().History) != 0 {
			t.Error("the other device was reset, too")
		}
	})
}

// If a reset that was requested fails, a device that works stays open, and a note says
// that it was not reset.
func TestR06OrderedResetFails(t *testing.T) {
	bubble(t, nil, func(b *bench) {
		b.newUser(time.Second)
		b.slot.set(func() { b.slot.stiff = errors.New("stiff") })
		if err := b.Reset(b.t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if s := b.healthy(time.Second + soon); s.Instance != 2 || b.slot.did().resets != 1 {
			t.Errorf("instance %d after %d resets", s.Instance, b.slot.did().resets)
		}
		if notes := b.notes(); !slices.Equal(notes, []string{"not reset: reset_failed: stiff"}) {
			t.Errorf("the operator reads %q", notes)
		}
		b.wantSteps(rung(qprecovery.RungDevice, qprecovery.ReasonOperator), rung(qprecovery.RungWait, qprecovery.ReasonVerbFailed))
	})
}

// The reason in the view says whether the device that is waited for is there.
func TestR29WaitTellsWhatFor(t *testing.T) {
	bubble(t, nil, func(b *bench) {
		b.newUser(0)
		b.slot.set(func() { b.slot.stiff = errors.New("stiff") })
		b.Ask(qprecovery.ReasonVerbFailed)
		time.Sleep(soon)
		if err := b.View().Err; err == nil || err.Error() != "device soft cannot be opened (verb_failed): not reset: reset_failed: stiff; retrying" {
			t.Errorf("with a reset that fails: %v", err)
		}
		b.slot.isolate()
		time.Sleep(soon)
		if err := b.View().Err; err == nil || err.Error() != "device soft is lost; waiting for it to come back" {
			t.Errorf("unplugged: %v", err)
		}
	})
}

// A request about a session that has ended does not displace another interface's request about the
// present one, nor the reverse, before Run receives either (R15).
func TestR15StaleRequestDisplacesNone(t *testing.T) {
	for _, staleFirst := range []bool{true, false} {
		bubble(t, nil, func(b *bench) {
			if err := b.Reset(context.Background()); err != nil {
				t.Fatal(err)
			}
			now := b.healthy(soon).Instance
			parked, err := b.Park(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			if staleFirst {
				b.Device.Ask(now-1, qprecovery.ReasonVerbFailed)
			}
			b.Device.Ask(now, qprecovery.ReasonVerbStuck)
			if !staleFirst {
				b.Device.Ask(now-1, qprecovery.ReasonVerbFailed)
			}
			parked.Release()
			synctest.Wait()
			b.healthy(soon)
			b.wantSteps(rung(qprecovery.RungDevice, qprecovery.ReasonVerbStuck))
		})
	}
}
