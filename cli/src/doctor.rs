//! `tenure doctor`: whether the servers are fit for locks, and whether locks work.

use std::io::ErrorKind;
use std::process::ExitCode;

use tenure::inspect::{Finding, FindingLevel, Inspection};

use crate::NO;
use crate::args::{DoctorArgs, OutputArgs};
use crate::failure::Failure;
use crate::table::table;
use crate::terminal;
use crate::text::{json, shown};

/// Prints a line for each check. Exits with 1 if one fails, also if the reader is gone.
pub(crate) async fn run(
    inspection: &Inspection,
    wanted: &DoctorArgs,
    output: &OutputArgs,
) -> Result<ExitCode, Failure> {
    let mut findings = inspection.check().await?;
    if !wanted.is_read_only {
        findings.extend(inspection.check_locks().await?);
    }
    let text = if output.is_json {
        let lines = findings
            .iter()
            .map(|finding| json(serde_json::to_string(finding)));
        lines.collect::<Result<String, _>>()?
    } else {
        let header = ["LEVEL", "CHECK", "SERVER", "TEXT"];
        table(header, findings.iter().map(row).collect())
    };
    match terminal::print(&text) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        written => written?,
    }
    let has_fault = findings.iter().any(|finding| finding.level == FindingLevel::Fail);
    Ok(if has_fault {
        ExitCode::from(NO)
    } else {
        ExitCode::SUCCESS
    })
}

fn row(finding: &Finding) -> [String; 4] {
    let server = shown(&*finding.server);
    [
        finding.level.word().to_owned(),
        finding.check.to_owned(),
        server,
        shown(&finding.text),
    ]
}
