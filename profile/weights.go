package profile

import "math"

// rounding is more than what weights in parts of Diff.scale are off by, in samples.
const rounding = 1e-3

// weights are sides in the units that the samples have.
type weights struct {
	weight, squares [2]float64
}

func (d *Diff) weights(s *sides) (w weights) {
	for i, per := range d.per {
		w.weight[i] = float64(s.weight[i]) / per
		w.squares[i] = s.squares[i] / (per * per)
	}
	return w
}

// compareWeights is exposure.compare for samples of different weights. Their
// sum comes from a compound Poisson process, the variance of which is the sum of
// the squares. It is as uncertain as a number of equal samples, and these are
// compared. Both sides together tell how large these are: when nothing has
// changed, the weights on both come from the same distribution.
//
// profile/web/diff.js has the same.
func (d *Diff) compareWeights(s *sides) (p, least float64) {
	w, all := d.weights(s), d.weights(&d.all)
	unit := d.equalSample(&w, &all)
	if unit <= 0 {
		return 1, 1
	}
	before, after := w.weight[0]/unit, w.weight[1]/unit
	e := exposure{d.scale / (d.per[0] * unit), d.scale / (d.per[1] * unit), d.exposure.rates}
	if !e.rates {
		e.before, e.after = math.Ceil(all.weight[0]/unit-rounding), math.Ceil(all.weight[1]/unit-rounding)
	}
	// Fractions of samples are rounded to what differs less.
	if before*e.after > after*e.before {
		before, after = math.Floor(before+rounding), math.Ceil(after-rounding)
	} else {
		before, after = math.Ceil(before-rounding), math.Floor(after+rounding)
	}
	return e.compare(int64(before), int64(after))
}

// equalSample is the weight of each of equal samples that are as uncertain as w;
// 0 when there is nothing.
func (d *Diff) equalSample(w, all *weights) float64 {
	weight, squares := w.weight[0]+w.weight[1], w.squares[0]+w.squares[1]
	if weight <= 0 {
		return 0
	}
	unit := squares / weight
	if rest := all.weight[0] + all.weight[1] - weight; rest > 0 && !d.exposure.rates {
		// A share r of the whole has the variance (1-r)²·squares + r²·(those of the rest).
		r := weight / (weight + rest)
		unit = (1-r)*unit + r*(all.squares[0]+all.squares[1]-squares)/rest
	}
	return unit
}

// varianceOfWeight is that of Change.Before (side 0) or After. No sample is as
// uncertain as one.
func (d *Diff) varianceOfWeight(s *sides, side int) float64 {
	squares := s.squares[side] / (d.scale * d.scale)
	if s.weight[side] == 0 {
		w, all := d.weights(s), d.weights(&d.all)
		unit := d.equalSample(&w, &all)
		if unit == 0 {
			unit = d.equalSample(&all, &all)
		}
		unit *= d.per[side] / d.scale
		return unit * unit
	}
	if d.exposure.rates {
		return squares
	}
	r := float64(s.weight[side]) / float64(d.all.weight[side])
	return (1-r)*(1-r)*squares + r*r*max(0, d.all.squares[side]/(d.scale*d.scale)-squares)
}
