package hcatest

import (
	"fmt"

	"ipoibd/hca"
)

var stateChecks = []check{
	{name: "state/every_transition", run: stateEveryTransition},
	{name: "state/sqe", run: stateSQE, needs: func(f Features, _ Host) bool { return f.SendErrorIsSQE }},
	{name: "state/attribute_masks", run: stateMasks},
	{name: "state/attribute_values", run: stateValues},
	{name: "state/query", run: stateQuery},
	{name: "state/reset_and_up_again", run: stateUpAgain},
}

// Every transition is allowed or refused according to IBA 1.4, table 91, and a refused
// Modify changes nothing.
func stateEveryTransition(b *bench) {
	for _, from := range []hca.QPState{hca.QPReset, hca.QPInit, hca.QPRTR, hca.QPRTS, hca.QPSQD, hca.QPErr} {
		for to := hca.QPState(0); to <= hca.NumQPState; to++ {
			b.transition(from, to)
		}
	}
}

func stateSQE(b *bench) {
	for to := hca.QPState(0); to < hca.NumQPState; to++ {
		b.transition(hca.QPSQE, to)
	}
}

func (b *bench) transition(from, to hca.QPState) {
	b.Helper()
	e := b.newEnd(b.a, defaultSpec())
	e.to(from)
	e.wantState(from)
	what := fmt.Sprintf("%v to %v", from, to)
	err := e.step(from, to)
	if hca.UDTransition(from, to).Allowed {
		must(b, err, what)
		e.wantState(to)
		return
	}
	b.wantErr(err, hca.ErrInvalid, what)
	e.wantState(from)
}

// A Modify without a required attribute, or with one that is neither required nor
// optional, is refused.
func stateMasks(b *bench) {
	bits := []hca.QPAttrMask{
		hca.AttrCurState, hca.AttrPKeyIndex, hca.AttrPort, hca.AttrQKey, hca.AttrSQPSN,
	}
	way := []hca.QPState{hca.QPReset, hca.QPInit, hca.QPRTR, hca.QPRTS, hca.QPSQD}
	for i, from := range way[:len(way)-1] {
		to, rule := way[i+1], hca.UDTransition(from, way[i+1])
		for _, bit := range bits {
			if rule.Optional&bit != 0 {
				continue
			}
			e := b.newEnd(b.a, defaultSpec())
			e.to(from)
			err := e.qp.Modify(e.attr(to), (hca.AttrState|rule.Required)^bit)
			b.wantErr(err, hca.ErrInvalid, fmt.Sprintf("%v to %v, mask bit %#x", from, to, uint32(bit)))
			e.wantState(from)
		}
	}
	e := b.newEnd(b.a, defaultSpec())
	err := e.qp.Modify(e.attr(hca.QPInit), hca.UDTransition(hca.QPReset, hca.QPInit).Required)
	b.wantErr(err, hca.ErrInvalid, "without the state")
}

func stateValues(b *bench) {
	init := hca.AttrState | hca.UDTransition(hca.QPReset, hca.QPInit).Required
	e := b.newEnd(b.a, defaultSpec())
	for _, change := range []func(*hca.QPAttr){
		func(a *hca.QPAttr) { a.PKeyIndex = 0xffff },
		func(a *hca.QPAttr) { a.Port = 0 },
		func(a *hca.QPAttr) { a.Port = b.a.Dev.Attr().Ports + 1 },
	} {
		a := e.attr(hca.QPInit)
		change(&a)
		b.wantErr(e.qp.Modify(a, init), hca.ErrInvalid, "to INIT")
		e.wantState(hca.QPReset)
	}
	e.to(hca.QPRTS)
	a := e.attr(hca.QPRTS)
	a.CurState = hca.QPSQE
	b.wantErr(e.qp.Modify(a, hca.AttrState|hca.AttrCurState), hca.ErrInvalid, "wrong current state")
	a.CurState = hca.QPRTS
	must(b, e.qp.Modify(a, hca.AttrState|hca.AttrCurState), "right current state")
}

// Query returns the attributes that were set, and Modify changes no others.
func stateQuery(b *bench) {
	e := b.newEnd(b.a, defaultSpec())
	e.to(hca.QPRTS)
	got, err := e.qp.Query()
	must(b, err, "query")
	if got.State != hca.QPRTS || got.QKey != qkey || got.Port != b.a.Port || got.SQPSN != startPSN {
		b.Errorf("attributes %+v", got)
	}
	must(b, e.qp.Modify(hca.QPAttr{State: hca.QPRTS, QKey: 5, Port: 9, SQPSN: 1}, hca.AttrState|hca.AttrQKey), "set Q_Key")
	want := got
	want.QKey = 5
	if got, err = e.qp.Query(); err != nil || got != want {
		b.Errorf("attributes %+v, want %+v (%v)", got, want, err)
	}
}

// From every state, a QP works again after RESET, with the same number.
func stateUpAgain(b *bench) {
	x, y := b.pair()
	num := x.qp.Num()
	for _, s := range []hca.QPState{hca.QPErr, hca.QPInit, hca.QPSQD, hca.QPRTR} {
		must(b, x.step(hca.QPRTS, hca.QPReset), "to RESET")
		x.to(s)
		must(b, x.step(s, hca.QPReset), "back to RESET")
		x.to(hca.QPRTS)
		y.postRecv(1)
		if wc := x.probe(y, s.String()); wc.SrcQPN != num {
			b.Errorf("message from %v, want %v", wc.SrcQPN, num)
		}
	}
}
