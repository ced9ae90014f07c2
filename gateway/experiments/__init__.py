"""What experiments leave behind: their state and counts, kept over restarts, and their report.

- `observing`: what an outcome says of its arm;
- `store`, `store_file`, `store_redis`: where state and counts are kept, and who decides;
- `mirror`: what other replicas counted, read again where it changed;
- `report_page`, `report_plots`, `wording`: a report as one HTML page.

What runs is beside this folder: `trials` gives each request its arm, `places` says where it goes
when that one cannot serve it, `keeper` counts and decides, `experiment_live` holds what was
counted, `shadow` copies, `experiment_report` tells. The statistics are in `policies.experiments`.
"""
