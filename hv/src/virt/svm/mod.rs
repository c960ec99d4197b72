//! AMD-V (SVM).
