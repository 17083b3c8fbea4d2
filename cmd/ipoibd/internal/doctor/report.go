package doctor

import "ipoibd/cmd/ipoibd/internal/diagnose"

// SchemaVersion is the version of docs/doctor.schema.json. It increases when a field changes its
// meaning or disappears; new findings do not change it.
const SchemaVersion = 1

// Report is what `ipoibd doctor --json` prints.
type Report struct {
	SchemaVersion int                `json:"schema_version"`
	Daemon        *Daemon            `json:"daemon"`   // null: none answers
	Findings      []diagnose.Finding `json:"findings"` // the most important one first
}

// Daemon is the daemon that was examined.
type Daemon struct {
	Version string `json:"version"`
	PID     int    `json:"pid"`
}

// NewReport returns the report of findings.
func NewReport(f *diagnose.Facts, found []diagnose.Finding) Report {
	r := Report{SchemaVersion: SchemaVersion, Findings: found}
	if f.Status != nil {
		r.Daemon = &Daemon{f.Status.Version, f.Status.PID}
	}
	return r
}
