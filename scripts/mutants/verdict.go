package main

// verdict is what became of a mutant.
type verdict uint8

const (
	killed verdict = iota
	survived
	notEnded
	timedOut
	notBuilt
	stale
	numVerdict
)

var verdictNames = [numVerdict]string{"killed", "survived", "not ended", "timed out", "not built", "stale"}

func (v verdict) String() string { return verdictNames[v] }

// judgeTests says what a run of tests that are to fail shows: killed where all
// of them do.
func (o *outcome) judgeTests(tests []test) verdict {
	switch {
	case o.unbuilt:
		return notBuilt
	case o.timedOut:
		return timedOut
	}
	return o.worst(tests)
}

// worst is the verdict of the test that shows least.
func (o *outcome) worst(tests []test) verdict {
	worst := killed
	for _, t := range tests {
		if passed, ended := o.ended[t]; !ended {
			worst = max(worst, notEnded)
		} else if passed {
			worst = max(worst, survived)
		}
	}
	return worst
}

// notPassed lists the tests that did not pass.
func (o *outcome) notPassed(tests []test) (out []test) {
	for _, t := range tests {
		if !o.ended[t] {
			out = append(out, t)
		}
	}
	return out
}
